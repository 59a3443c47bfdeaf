"""Bait on the host: servers, a socket and a file that no program in a sandbox may reach."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
import threading
from pathlib import Path
from typing import Self

CATCH_UP_S = 30.0


class Host:
    """A context manager. received: the peers that contacted a server of ours.

    Values for snippets: @TCP_PORT@ and @UDP_PORT@ of servers on all our addresses, @ADDRESSES@ of this machine,
    @ABSTRACT@ the name of an abstract unix socket, @SECRET_PATH@ a file that anyone may read, @PID@ ours.
    """

    def __init__(self) -> None:
        self.received: list[str] = []
        self.secret = secrets.token_hex(16)
        self._values: dict[str, str] = {}
        self._sockets: list[socket.socket] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        tcp = self._listen(socket.socket(socket.AF_INET, socket.SOCK_STREAM), ("0.0.0.0", 0))
        udp = self._listen(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), ("0.0.0.0", 0))
        abstract = f"agentgym-bait-{secrets.token_hex(8)}"
        if hasattr(socket, "AF_UNIX") and os.uname().sysname == "Linux":
            self._listen(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "\0" + abstract)
        self._folder = tempfile.TemporaryDirectory(prefix="agentgym-bait-", dir="/tmp")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        secret = folder / "secret"
        secret.write_text(self.secret, encoding="utf-8")
        self._values = {
            "TCP_PORT": str(tcp.getsockname()[1]),
            "UDP_PORT": str(udp.getsockname()[1]),
            "ADDRESSES": repr(_addresses()),
            "ABSTRACT": repr(abstract),
            "SECRET_PATH": repr(str(secret)),
            "PID": str(os.getpid()),
        }
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._sockets:
            sock.close()
        if self._folder is not None:
            self._folder.cleanup()

    async def catch_up(self) -> None:
        """Return when the servers have received all that was sent to them; our own probes are not recorded."""
        for kind, port in ((socket.SOCK_STREAM, "TCP_PORT"), (socket.SOCK_DGRAM, "UDP_PORT")):
            with socket.socket(socket.AF_INET, kind) as own:
                own.connect(("127.0.0.1", int(self._values[port])))
                own.send(b"x")
                name = str(own.getsockname())
                async with asyncio.timeout(CATCH_UP_S):
                    while name not in self.received:  # noqa: ASYNC110  # a thread receives it
                        await asyncio.sleep(0.005)
                self.received.remove(name)

    def fill(self, code: str) -> str:
        """The code with the values of this host in it."""
        for name, value in self._values.items():
            code = code.replace(f"@{name}@", value)
        return code

    def _listen(self, sock: socket.socket, address: tuple[str, int] | str) -> socket.socket:
        sock.bind(address)
        sock.settimeout(0.2)
        if sock.type == socket.SOCK_STREAM:
            sock.listen(16)
        self._sockets.append(sock)
        threading.Thread(target=self._serve, args=(sock,), daemon=True).start()
        return sock

    def _serve(self, sock: socket.socket) -> None:
        while sock.fileno() >= 0:
            try:
                if sock.type == socket.SOCK_STREAM:
                    connection, peer = sock.accept()
                    connection.close()
                else:
                    _, peer = sock.recvfrom(512)
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            self.received.append(str(peer))


def _addresses() -> list[str]:
    """This machine's addresses, and where Docker's bridge usually has its host."""
    found = {"127.0.0.1", "172.17.0.1"}
    with contextlib.suppress(OSError):
        found.update(str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET))
    return sorted(found)
