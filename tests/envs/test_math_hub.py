"""A hub that is out of reach is found out at once."""

from __future__ import annotations

import http.server
import socket
import threading

from agentgym_envs.math.hub import answers


class Refusing(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_server_that_refuses_is_reached() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert answers(f"http://127.0.0.1:{server.server_port}", 30)
        finally:
            server.shutdown()


def test_a_closed_port_and_a_server_that_says_nothing_are_not_reached() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not answers(address, 30)  # not listening: refused, long before the limit
        silent.listen()
        assert not answers(address, 0.2)
