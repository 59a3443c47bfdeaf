"""The server of `agentgym view`: uvicorn on one address, until it is stopped."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from agentgym.errors import UserError
from agentgym.http_server import Bounds, configure
from agentgym.view.app import View, build_app
from agentgym.view.security import Access

PORT = 8710
NUM_PORTS = 20  # that are tried after the default


def cache_folder() -> Path:
    """The cache folder for what is derived from runs and kept outside of them."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "agentgym" / "view"


def listen(host: str, port: int | None) -> socket.socket:
    """port: None takes the default or one of the next that is free; 0 any. Raises UserError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(PORT, PORT + NUM_PORTS) if port is None else [port]
    error: OSError | None = None
    for one in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, one))
            listening.listen(64)
        except OSError as failed:
            listening.close()
            error = failed
            continue
        return listening
    assert error is not None
    where = f"{host}:{port}" if port else host
    raise UserError(f"can't listen on {where}: {error.strerror or error}; choose another --port or --host")


def address(host: str, port: int, access: Access) -> str:
    """What a browser opens."""
    name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={access.token}" if access.token else "")


class Server(uvicorn.Server):
    """A server without signal handlers: the caller cancels it. on_start: called once requests are answered."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()


async def serve(
    view: View, host: str, listening: socket.socket, started: Callable[[str], None], bounds: Bounds | None = None
) -> None:
    """Serves until cancelled. started: called with the address once requests are answered."""
    port = listening.getsockname()[1]
    access = Access.of(host, port)
    config = configure(build_app(view, access), bounds or Bounds(), lifespan="on", timeout_graceful_shutdown=1)
    server = Server(config, lambda: started(address(host, port, access)))
    running = asyncio.create_task(server._serve([listening]))  # `serve` would take the signals
    try:
        await asyncio.shield(running)
    finally:
        view.closing.set()
        server.should_exit = True
        await running
        listening.close()
