"""One request to the proxy. h11 parses it; what h11 accepts but two parsers could read differently is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import h11

from agentgym_sandboxes.network.hosts import shown, split_port
from agentgym_sandboxes.network.streams import ByteStream

MAX_HEAD_BYTES = 32 * 1024
MAX_TARGET_BYTES = 8192
MAX_HEADERS = 100
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS"})
_URL = re.compile(r"http://([^/?#@\\]*)([/?].*)?", re.IGNORECASE)
_AMBIGUOUS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n|\n[ \t]")
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*([^\r]*?)[ \t]*\r", re.IGNORECASE)
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_HOP_BY_HOP = _FRAMING | {
    b"host", b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings"
}  # fmt: skip
_EVENTS_AT_ONCE = 256  # 64 KiB may hold ten thousand chunks, and other connections wait meanwhile


class BadRequest(ValueError):
    """The request cannot be forwarded. status: the HTTP status code of the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Where a request goes. host: canonical. forward: the head to send on, empty for a tunnel."""

    tunnel: bool
    host: str
    port: int
    forward: bytes = b""


class ClientRequest:
    """Reads one request from a client and frames it again for the server: first the head, then the body."""

    def __init__(self, client: ByteStream) -> None:
        self._client = client
        self._incoming = h11.Connection(h11.SERVER, MAX_HEAD_BYTES)
        self._outgoing = h11.Connection(h11.CLIENT)
        self._is_chunked = False

    @property
    def rest(self) -> bytes:
        """What was received and not parsed: after the head of a tunnel, its first bytes."""
        return self._incoming.trailing_data[0]

    async def read_head(self) -> Head:
        """Raises BadRequest, and EOFError when the client ends too soon."""
        raw = bytearray()
        while not isinstance(event := self._next_event(), h11.Request):
            raw += await self._receive()
        _check_raw(bytes(raw[: len(raw) - len(self.rest)]), len(event.target))
        if event.http_version not in (b"1.0", b"1.1"):
            raise BadRequest(400, "the request is not HTTP/1.0 or HTTP/1.1")
        headers = dict(event.headers)
        if event.method == b"CONNECT":
            return _tunnel(event.target, headers)
        if event.method not in _METHODS:
            raise BadRequest(501, f"method {event.method[:20].decode()} is not forwarded")
        self._is_chunked = b"transfer-encoding" in headers
        if self._is_chunked and (b"content-length" in headers or event.http_version == b"1.0"):
            raise BadRequest(400, "the length of the body is ambiguous")
        return self._forwarded(event, headers)

    def _forwarded(self, request: h11.Request, headers: dict[bytes, bytes]) -> Head:
        url = _URL.fullmatch(request.target.decode())
        if url is None:
            raise BadRequest(400, "a proxy takes http://host/path, and CONNECT for https")
        host, port = _authority(url[1], 80)
        if b"host" in headers and _authority(headers[b"host"].decode("latin-1"), 80) != (host, port):
            raise BadRequest(400, "the Host header and the URL name different hosts")
        path = url[2] or "/"
        connection = b",".join(value for name, value in request.headers if name == b"connection")
        dropped = _HOP_BY_HOP | {name.strip().lower() for name in connection.split(b",")}
        raw = [(name, name.lower(), value) for name, value in request.headers.raw_items()]
        kept = [(n, v) for n, lower, v in raw if lower not in dropped and not lower.startswith(b"proxy-")]
        framing = [(n, v.lstrip(b"0") or b"0") for n, lower, v in raw if lower in _FRAMING]
        forward = self._outgoing.send(
            h11.Request(
                method=request.method,
                target=path if path.startswith("/") else f"/{path}",
                headers=[
                    (b"Host", (shown(host, port) if port != 80 else shown(host)).encode()),
                    *kept,
                    *framing,
                    (b"Connection", b"close"),  # so that no second request can name another host
                ],
            )
        )
        return Head(tunnel=False, host=host, port=port, forward=forward)

    async def copy_body(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the body on, framed again, and no byte that follows it.

        Raises BadRequest, also for a chunk with an extension and for trailers, and EOFError for an early end.
        """
        framed, num_events = bytearray(), 0
        num_received, chunk_bytes, plain_bytes = len(self.rest), 0, len(b"0\r\n\r\n")
        while not isinstance(event := self._next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                framed += self._outgoing.send(event)
                chunk_bytes += len(event.data)
                if event.chunk_end:
                    plain_bytes += len(b"%x\r\n\r\n" % chunk_bytes) + chunk_bytes
                    chunk_bytes = 0
                num_events += 1
                if num_events % _EVENTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                continue
            if framed:
                await send(bytes(framed))
                framed.clear()
            num_received += len(await self._receive())
        if self._is_chunked and num_received - len(self.rest) != plain_bytes:  # h11 skips what is not plain
            raise BadRequest(400, "a chunk has an extension or padding, or trailers follow")
        framed += self._outgoing.send(h11.EndOfMessage())
        if framed:
            await send(bytes(framed))

    async def _receive(self) -> bytes:
        piece = await self._client.read()
        if not piece:
            raise EOFError
        self._incoming.receive_data(piece)
        return piece

    def _next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            return self._incoming.next_event()
        except h11.RemoteProtocolError as error:
            if error.error_status_hint == 431:
                raise BadRequest(431, "the head of the request is too large") from error
            raise BadRequest(400, f"not valid HTTP: {str(error).partition(':')[0]}") from error


def _check_raw(head: bytes, target_bytes: int) -> None:
    """Refuse what h11 has repaired or merged, so that its event no longer shows it."""
    is_large = len(head) > MAX_HEAD_BYTES or head.count(b"\n") - 2 > MAX_HEADERS
    if is_large or target_bytes > MAX_TARGET_BYTES:
        raise BadRequest(431, "the head of the request is too large")
    if _AMBIGUOUS.search(head):
        raise BadRequest(400, "the head has control characters, bare line ends or folded lines")
    lengths = _LENGTH.findall(head)
    if len(lengths) > 1 or not all(re.fullmatch(rb"[0-9]{1,15}", length) for length in lengths):
        raise BadRequest(400, "the length of the body is ambiguous")


def _tunnel(target: bytes, headers: dict[bytes, bytes]) -> Head:
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise BadRequest(400, "a CONNECT request has no body")
    host, port = _authority(target.decode(), None)
    return Head(tunnel=True, host=host, port=port)


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    try:
        return split_port(text, default_port)
    except ValueError as error:
        raise BadRequest(400, str(error)) from error
