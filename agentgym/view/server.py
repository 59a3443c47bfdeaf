"""The server of `agentgym view`: uvicorn on one address, until it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable

from agentgym import http_server
from agentgym.http_server import Bounds, configure
from agentgym.view.app import View, build_app
from agentgym.view.security import Access

PORT = 8710
NUM_PORTS = 20  # that are tried after the default


def listen(host: str, port: int | None) -> socket.socket:
    """port: None takes the default or one of the next that is free; 0 any. Raises UserError."""
    return http_server.listen(host, range(PORT, PORT + NUM_PORTS) if port is None else [port])


def address(host: str, port: int, access: Access) -> str:
    """What a browser opens."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={access.token}" if access.token else "")


async def serve(
    view: View, host: str, listening: socket.socket, started: Callable[[str], None], bounds: Bounds | None = None
) -> None:
    """Serves until cancelled. started: called with the address once requests are answered."""
    port = listening.getsockname()[1]
    access = Access.of(host, port)
    config = configure(build_app(view, access), bounds or Bounds(), lifespan="on", timeout_graceful_shutdown=1)
    await http_server.serve_until_cancelled(
        config, listening, lambda: started(address(host, port, access)), view.closing.set
    )
