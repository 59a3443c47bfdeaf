"""The engine's attach call: an HTTP request that turns its connection into a container's standard streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from urllib.parse import quote

from agentgym_sandboxes.docker.endpoint import Endpoint

MAX_HEAD_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 16


class RequestRefused(Exception):
    """The engine answered something else; the message is what it said."""


async def attach(
    endpoint: Endpoint, version: str, container: str, protocol_factory: Callable[[], asyncio.Protocol]
) -> asyncio.Transport:
    """Connect the container's streams to a protocol. Raises RequestRefused, OSError.

    The protocol gets every byte from the first one on: attach before the start and nothing is missed.
    """
    path = f"/v{version}/containers/{quote(container, safe='')}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    return await _request(endpoint, "POST", path, "Connection: Upgrade\r\nUpgrade: tcp\r\n", protocol_factory)


async def ping(endpoint: Endpoint) -> None:
    """Whether the engine answers at all, on a connection and without a thread of its own.

    Raises RequestRefused, OSError.
    """
    transport = await _request(endpoint, "GET", "/_ping", "Connection: close\r\n", asyncio.Protocol)
    transport.abort()


async def removed(endpoint: Endpoint, version: str, container: str) -> None:
    """Return when a container is gone, whoever removes it; like `ping`, without a thread.

    Raises RequestRefused, also when it does not exist, and OSError.
    """
    path = f"/v{version}/containers/{quote(container, safe='')}/wait?condition=removed"
    removal = _Removal()
    transport = await _request(endpoint, "POST", path, "Connection: close\r\n", lambda: removal)
    try:
        await removal.done
    finally:
        transport.abort()


async def _request(
    endpoint: Endpoint, method: str, path: str, headers: str, protocol_factory: Callable[[], asyncio.Protocol]
) -> asyncio.Transport:
    upgrade = _Upgrade(protocol_factory)
    transport = await endpoint.open(lambda: upgrade)
    try:
        host = "docker" if endpoint.path else f"{endpoint.host}:{endpoint.port}"
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: 0\r\n\r\n"
        transport.write(head.encode())
        await upgrade.done
    except BaseException:
        transport.abort()
        raise
    return transport


class _Removal(asyncio.Protocol):
    """Receives how a container ended, whichever way that is framed."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_seen)
        self._body = b""

    def data_received(self, data: bytes) -> None:
        self._body = (self._body + data)[-MAX_BODY_BYTES:]
        if b'"StatusCode"' in self._body and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionResetError("the engine closed the connection"))


class _Upgrade(asyncio.Protocol):
    """Reads the head of the engine's answer, then gives the connection to the protocol proper."""

    def __init__(self, protocol_factory: Callable[[], asyncio.Protocol]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(_seen)
        self._protocol_factory = protocol_factory
        self._buffer = bytearray()
        self._status = 0
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self.done.done():
            return
        self._buffer += data
        if not self._status:
            head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not end:
                if len(head) > MAX_HEAD_BYTES:
                    self._refuse("an answer without an end")
                return
            self._status = _status(head)
            if self._status in (101, 200):  # 200: a proxy on the way, or an old engine, that knows no upgrade
                self._hand_over(rest)
                return
            self._buffer = bytearray(rest)
        if len(self._buffer) > MAX_BODY_BYTES or self._message() is not None:
            self._refuse(self._said())

    def connection_lost(self, error: Exception | None) -> None:
        self._refuse(self._said() if self._status else f"closed the connection{f': {error}' if error else ''}")

    def _hand_over(self, rest: bytes) -> None:
        """Hands over in the same step of the loop, so that no byte comes in between."""
        transport = self._transport
        assert isinstance(transport, asyncio.Transport)
        protocol = self._protocol_factory()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)
        self.done.set_result(None)

    def _refuse(self, why: str) -> None:
        if not self.done.done():
            self.done.set_exception(RequestRefused(why))

    def _said(self) -> str:
        message = self._message()
        return f"{self._status}: {message or bytes(self._buffer)[:200].decode(errors='replace')}"

    def _message(self) -> str | None:
        """What the engine says in an error's body, whichever way that is framed; None until it is there."""
        body = bytes(self._buffer)
        try:
            return str(json.loads(body[body.find(b"{") : body.rfind(b"}") + 1])["message"])
        except (ValueError, KeyError, TypeError):
            return None


def _seen(done: asyncio.Future[None]) -> None:
    """Whoever waited for it may have been cancelled: then nobody else looks at its exception."""
    if not done.cancelled():
        done.exception()


def _status(head: bytes) -> int:
    parts = head.split(b"\r\n", 1)[0].split()
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit():
        return 502
    return int(parts[1])
