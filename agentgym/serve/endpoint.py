"""The endpoint: an HTTP server in the running event loop, through which agent programs speak to the policy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import uvicorn

from agentgym.errors import UserError
from agentgym.http_server import Bounds, configure
from agentgym.policies.conversation import CallHandler
from agentgym.serve.app import make_app
from agentgym.serve.calls import Gate
from agentgym.serve.keys import Keys

IDLE_CONNECTION_S = 3600
"""A client's idle connection is kept so long: an agent may think, or run its tests, between two calls."""
MAX_BODY_BYTES = 8 * 2**20
KEEP_ALIVE_S = 3.0  # between two comments of a stream
CLOSE_S = 0.5
"""What is under way may be finished so long, once the endpoint closes."""
_UNIX = "unix:"


class Endpoint:
    """Chat completions, Responses, Messages and Gemini for whoever has a key: `async with Endpoint() as endpoint`.

    url: http://HOST:PORT, or unix:/path. OpenAI's clients take url + "/v1" as their base_url, Anthropic's and Google's
    take url.
    """

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        *,
        model: str = "policy",
        max_body_bytes: int = MAX_BODY_BYTES,
        keep_alive_s: float = KEEP_ALIVE_S,
        bounds: Bounds | None = None,
    ) -> None:
        """bind: HOST:PORT, where port 0 takes a free one, or unix:/path. keep_alive_s: between a stream's comments."""
        self.url = ""
        self.model = model
        self._bind, self._bounds = bind, bounds or Bounds()
        self._listener: socket.socket | None = None
        self._keys = Keys()
        self._gate = Gate(keys=self._keys, max_body_bytes=max_body_bytes, keep_alive_s=keep_alive_s)

    def listen(self) -> None:
        """Take the address, before anything that takes long; clients wait until it is entered.

        Raises UserError where it cannot listen.
        """
        if self._listener is None:
            self._listener, self.url = _listen(self._bind)

    def unlisten(self) -> None:
        """Give the address back where the endpoint was not entered; safe after its end, too."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            if self._bind.startswith(_UNIX):
                Path(self._bind.removeprefix(_UNIX)).unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        """Raises UserError where it cannot listen."""
        self.listen()
        assert self._listener is not None
        config = configure(
            make_app(self._gate, self.model),
            self._bounds,
            lifespan="off",
            log_config=None,
            date_header=False,
            timeout_keep_alive=IDLE_CONNECTION_S,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        started = asyncio.create_task(self._server.is_up.wait())
        await asyncio.wait((self._serving, started), return_when=asyncio.FIRST_COMPLETED)
        if self._serving.done():
            started.cancel()
            self._serving.result()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Calls under way are cancelled, and their clients are told; no task is left."""
        self._gate.closing = True
        running = [call.task for one in self._keys.admitted.values() for call in one.retries.running()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        connections, handlers = self._server.server_state.connections, self._server.server_state.tasks
        if handlers:
            await asyncio.wait(set(handlers), timeout=CLOSE_S)
        if handlers:  # of clients that stopped in the middle of a request, or do not read their answer
            for connection in list(connections):
                connection.transport.abort()
            await asyncio.gather(*handlers, return_exceptions=True)
        self._server.stop.set()
        await self._serving
        self.unlisten()

    def admit(self, handler: CallHandler, *, key: str = "") -> str:
        """The key that opens the handler's calls, and nothing else. key: instead of a random one."""
        return self._keys.admit(handler, key)

    def conclude(self, key: str) -> None:
        """Refuse the key's calls with 409 from now on, and cancel those under way. A second time does nothing.

        Raises what the handler raised that was no refusal: a bug, which the client only knows as status 500.
        """
        admitted = self._keys.conclude(key)
        if admitted is not None and admitted.bug is not None:
            raise admitted.bug

    def metrics(self) -> dict[str, float]:
        """Counts since the start: requests, answers, retries that shared one, disconnected clients, refusals by status.

        serve/keys and serve/calls_running are of this moment.
        """
        admitted = self._keys.admitted.values()
        counts = {f"serve/{name}": float(number) for name, number in sorted(self._gate.counts.items())}
        running = sum(len(one.retries.running()) for one in admitted)
        return {"serve/keys": float(len(admitted)), "serve/calls_running": float(running), **counts}


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, which are the job's, and without its clock."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up, self.stop = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        self.is_up.set()
        await self.stop.wait()


def _listen(bind: str) -> tuple[socket.socket, str]:
    """A bound socket and its URL. Raises UserError."""
    if bind.startswith(_UNIX):
        return _listen_unix(bind), bind
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"the endpoint's address is {bind!r}; give HOST:PORT, as 127.0.0.1:0, or unix:/path")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        raise UserError(f"the endpoint cannot listen at {bind!r}: {error}; give another address, or port 0") from error
    shown = f"[{host}]" if family is socket.AF_INET6 else host
    return listener, f"http://{shown}:{listener.getsockname()[1]}"


def _listen_unix(bind: str) -> socket.socket:
    path = Path(bind.removeprefix(_UNIX))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()  # left by a process that was killed
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        listener.close()
        raise UserError(f"the endpoint cannot listen at {bind!r}: {error}; give another path") from error
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0
