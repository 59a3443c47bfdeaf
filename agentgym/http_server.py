"""Bounds on what a client of our HTTP servers may send, and on its silence (uvicorn)."""

from __future__ import annotations

import asyncio
import functools
import resource
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from agentgym.errors import UserError

MAX_PIPELINED = 8
"""Requests that wait for the answer of an earlier one of their connection. No client of ours sends any."""
_BYTES_PER_BODY_BYTE = 6  # a chunk of one byte, with its frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """max_head_bytes: of the request line and the headers, and of what is neither head nor body (chunks' frames,
    trailers). head_s: from the connection, or from a request's first byte, to the end of its head.
    body_s: from there to the end of its body. max_connections: None is half of the process's descriptors.
    """

    max_head_bytes: int = 32 * 1024
    max_headers: int = 100
    head_s: float = 30.0
    body_s: float = 300.0
    max_connections: int | None = None


def configure(app: Any, bounds: Bounds, *, ws: str = "none", **settings: Any) -> uvicorn.Config:
    """Settings of a server within the bounds. What clients do wrong is not logged: they could fill the log."""
    protocol: Any = functools.partial(BoundedProtocol, bounds)
    return uvicorn.Config(
        app, http=protocol, ws=ws, log_level="error", access_log=False, proxy_headers=False, server_header=False,
        **settings,
    )  # fmt: skip


def listen(host: str, ports: Iterable[int]) -> socket.socket:
    """A socket that listens on the first port that is free; 0 is any. Raises UserError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    error: OSError | None = None
    for port in ports:
        if not 0 <= port <= 65535:
            raise UserError(f"--port is {port}; give 0 to 65535")
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(256)
        except OSError as failed:
            listening.close()
            error = failed
            continue
        return listening
    assert error is not None
    where = f"{host}:{port}" if port else host
    raise UserError(f"can't listen on {where}: {error.strerror or error}; choose another --port or --host")


class _Server(uvicorn.Server):
    """A server without signal handlers: the caller cancels it. on_start: called once requests are answered."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()


async def serve_until_cancelled(
    config: uvicorn.Config,
    listening: socket.socket,
    on_start: Callable[[], None],
    on_end: Callable[[], None] = lambda: None,
) -> None:
    """Answers requests until cancelled. on_end: called then, before connections are closed."""
    server = _Server(config, on_start)
    running = asyncio.create_task(server._serve([listening]))  # `serve` would take the signals
    try:
        await asyncio.shield(running)
    finally:
        on_end()
        server.should_exit = True
        await running
        listening.close()


class BoundedProtocol(HttpToolsProtocol):
    """One connection. uvicorn itself bounds a connection's idle time and how far it reads ahead in a body."""

    def __init__(self, bounds: Bounds, **given: Any) -> None:
        super().__init__(**given)
        self._bounds = bounds
        self._deadline: asyncio.TimerHandle | None = None
        self._part = ""  # of the message that is under way: head or body
        self._num_headers = self._head_bytes = 0
        self._unpaid_bytes = 0  # received, and not paid for by a complete message or by the body
        self._too_large = False
        self._unsent = 0  # bytes of the answer, when it was last looked at

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        if own.family != socket.AF_UNIX:  # asyncio leaves it out where a listener was made without a protocol number
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > (self._bounds.max_connections or _max_connections()):
            self._refuse(503, "too many connections")
        else:
            self._expect(self._bounds.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._part and self._deadline is None:
            self._expect(self._bounds.head_s)
        self._unpaid_bytes += len(data)
        super().data_received(data)
        if self._unpaid_bytes > self._bounds.max_head_bytes:
            self._refuse(431, "the head of the request is too large")

    def on_message_begin(self) -> None:
        self._part, self._num_headers, self._head_bytes = "head", 0, 0
        if self._deadline is None:  # it came with the end of another
            self._expect(self._bounds.head_s)
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._check_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Counts a header, of the head or of the trailers after a body."""
        self._num_headers += 1
        self._check_head(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests without a pause")
        super().on_headers_complete()
        self._part, self._unpaid_bytes = "body", 0
        self._expect(self._bounds.body_s)

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # or nobody reads it
            self._unpaid_bytes = max(0, self._unpaid_bytes - _BYTES_PER_BODY_BYTE * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part, self._unpaid_bytes = "", 0
        answered = self.cycle is None or self.cycle.response_complete  # None: it asks for a WebSocket
        self._expect(self._bounds.head_s if answered else None)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """The connection is another protocol's from here on, which has limits of its own."""
        self._expect(None)
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        self._unsent = 0
        super().on_response_complete()
        if self._part == "body" and self.cycle.response_complete:
            self._expect(self._bounds.head_s)  # for the rest of a body that is dropped

    def send_400_response(self, msg: str) -> None:
        """Called for every error of the parser."""
        if self._too_large:
            self._refuse(431, "the head of the request is too large")
        else:
            self._refuse(400, msg)

    def timeout_keep_alive_handler(self) -> None:
        """A client that reads its answer slowly is waited for; one that does not would keep a closed connection."""
        left = self.transport.get_write_buffer_size()
        if left == self._unsent:
            self.transport.abort()
        else:
            self._unsent = left
            self.timeout_keep_alive_task = self.loop.call_later(self._bounds.head_s, self.timeout_keep_alive_handler)

    def _check_head(self, num_bytes: int) -> None:
        """Raises ValueError, which the parser passes on as its own error."""
        self._head_bytes += num_bytes
        bounds = self._bounds
        self._too_large = self._head_bytes > bounds.max_head_bytes or self._num_headers > bounds.max_headers
        if self._too_large:
            raise ValueError("the head of the request is too large")

    def _expect(self, seconds: float | None) -> None:
        """Give the client this time for what comes next; None is for ever."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._overdue)

    def _overdue(self) -> None:
        if self.flow.read_paused:  # by us
            self._expect(self._bounds.body_s)
        else:
            self._refuse(408, "the request did not come in time")

    def _refuse(self, status: int, why: str) -> None:
        """Close the connection, with an answer where the client can tell which request it is for."""
        if self.transport.is_closing():
            return
        if self._part != "body" and (self.cycle is None or self.cycle.response_complete):
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(why) + why.encode())
        self.transport.close()


def _max_connections() -> int:
    """Each may hold another descriptor of ours, on its way from a sandbox."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4096 if soft == resource.RLIM_INFINITY else max(16, min(4096, soft // 2))
