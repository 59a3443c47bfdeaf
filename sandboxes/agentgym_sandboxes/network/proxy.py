"""An HTTP proxy to allowed hosts: checks each connection's host, resolves it here, and opens it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agentgym_sandboxes.network.allow_list import AllowList
from agentgym_sandboxes.network.client_hello import NotTls, server_name
from agentgym_sandboxes.network.hosts import Address, address_of, canonical_host
from agentgym_sandboxes.network.http_body import copy_body
from agentgym_sandboxes.network.http_head import MAX_HEAD_BYTES, BadRequest, Head, read_head
from agentgym_sandboxes.network.streams import PIECE_BYTES, ByteStream, Input, SocketStream

log = logging.getLogger(__name__)

MAX_FOUND = 32  # looked at, of one name: whoever owns it may give it thousands
MAX_ADDRESSES = 4  # tried of those
LINGER_S, LINGER_BYTES = 2.0, 1 << 20
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_UNRECOGNIZED_NAME = b"\x15\x03\x03\x00\x02\x02\x70"  # a fatal TLS alert

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """What one session may use. max_bytes: in both directions together."""

    max_connections: int = 32
    max_bytes: int = 1 << 30
    head_timeout_s: float = 15.0
    connect_timeout_s: float = 15.0
    idle_timeout_s: float = 120.0


class _Refused(Exception):
    """The connection ends here; status and sentence go to the client."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _UsedUp(Exception):
    """The session's bytes are used up."""


class Proxy:
    """Serves the connections of one session.

    counts: of connections that were allowed, refused or failed; sent_bytes, received_bytes. count: is told each
    change of them as well.
    """

    def __init__(
        self,
        name: str,
        allowed: AllowList,
        limits: ProxyLimits,
        resolve: Resolve | None = None,
        count: Callable[[str, int], None] = lambda what, number: None,
    ) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._name = name
        self._allowed = allowed
        self._limits = limits
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="resolve")
        self._resolve = resolve or self._look_up
        self._tell_count = count
        self._num_open = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def serve(self, client: ByteStream) -> None:
        """Serve one connection to its end. What goes wrong with it ends it and nothing else."""
        self._num_open += 1
        try:
            await self._answer(client)
            client.close()
        except (OSError, EOFError, TimeoutError, _UsedUp) as error:
            log.debug("%s: a connection ended: %r", self._name, error)
        finally:
            self._num_open -= 1
            client.abort()

    async def _answer(self, client: ByteStream) -> None:
        incoming = Input(client)
        try:
            if self._num_open > self._limits.max_connections:
                raise _Refused(503, f"more than {self._limits.max_connections} connections at once")
            head = await self._head(incoming)
            self._check(head)
            upstream = await self._connect(head)
            try:
                if head.tunnel:
                    await client.write(_ESTABLISHED)
                    return await self._tunnel(head, client, incoming, upstream)
                return await self._forward(head, client, incoming, upstream)
            finally:
                upstream.abort()
        except _Refused as refused:
            status, why = refused.status, str(refused)
        except BadRequest as error:
            self._count("refused")
            status, why = error.status, f"request refused: {error}"
        log.info("%s: %d %s", self._name, status, why)
        await self._say(client, status, why)

    async def _head(self, incoming: Input) -> Head:
        try:
            async with asyncio.timeout(self._limits.head_timeout_s):
                data = await incoming.until(b"\r\n\r\n", MAX_HEAD_BYTES)
        except TimeoutError:
            raise BadRequest(408, "its head did not come in time") from None
        if data is None:
            raise BadRequest(431, "the head of the request is too large")
        return read_head(data)

    def _check(self, head: Head) -> None:
        where = _shown(head.host, head.port)
        if self._num_bytes() >= self._limits.max_bytes:
            self._count("refused")
            raise _Refused(403, f"the session used up its {self._limits.max_bytes} bytes of network")
        if self._allowed.entry_for(head.host, head.port) is None:
            self._count("refused")
            raise _Refused(403, f"{where} is not on the allow list of this session: {self._allowed}")

    async def _connect(self, head: Head) -> ByteStream:
        """A connection to an address that was checked after it was resolved: the name is not asked again."""
        where = _shown(head.host, head.port)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s) as clock:
                literal = address_of(head.host)
                found = [literal] if literal is not None else await self._resolve(head.host, head.port)
                permitted = [a for a in found[:MAX_FOUND] if self._allowed.permits_address(a, head.port)]
                if found and not permitted:
                    self._count("refused")
                    raise _Refused(
                        403,
                        f"{where} leads to {found[0]}, which is not public and not on the allow list itself",
                    )
                for address, share_s in _shares(permitted[:MAX_ADDRESSES], clock):
                    with contextlib.suppress(OSError):
                        async with asyncio.timeout(share_s):
                            pair = await asyncio.open_connection(str(address), head.port, limit=PIECE_BYTES)
                        self._count("allowed")
                        log.info("%s: connected to %s at %s", self._name, where, address)
                        return SocketStream(*pair)
        except TimeoutError:
            self._count("failed")
            raise _Refused(504, f"{where} did not answer in time") from None
        except OSError as error:
            self._count("failed")
            raise _Refused(502, f"{where} could not be found: {_ascii(str(error))}") from error
        self._count("failed")
        raise _Refused(502, f"{where} could not be reached")

    async def _look_up(self, host: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return [ipaddress.ip_address(entry[4][0]) for entry in found]

    async def _forward(self, head: Head, client: ByteStream, incoming: Input, upstream: ByteStream) -> None:
        """One request; its connection ends with the response."""

        async def copy_request() -> None:
            send = self._meter(upstream.write, "sent_bytes", clock)
            await send(head.forward)
            try:
                await copy_body(incoming, send, head.body_bytes)
            except BadRequest as error:  # too late for an answer: the response may be under way
                self._count("refused")
                raise EOFError from error

        async with asyncio.timeout(self._limits.idle_timeout_s) as clock:
            there = asyncio.create_task(copy_request())
            back = asyncio.create_task(self._copy_back(upstream, client, clock))
            async with _ended(there, back):
                await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
                if not back.done() and isinstance(there.exception(), OSError | None):
                    await back  # a server may answer before it took all of a body
                (back if back.done() else there).result()
        await _linger(client)

    async def _tunnel(self, head: Head, client: ByteStream, incoming: Input, upstream: ByteStream) -> None:
        """Bytes in both directions, after the client's beginning was seen to be meant for this host."""

        async def copy_there() -> None:
            send = self._meter(upstream.write, "sent_bytes", clock)
            await self._copy_hello(head, client, incoming, send)
            with contextlib.suppress(EOFError):
                while True:
                    await send(await incoming.some(PIECE_BYTES))
            upstream.end()

        async with asyncio.timeout(self._limits.idle_timeout_s) as clock:
            there = asyncio.create_task(copy_there())
            back = asyncio.create_task(self._copy_back(upstream, client, clock))
            async with _ended(there, back):
                done, _ = await asyncio.wait({there, back}, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()

    async def _copy_back(self, upstream: ByteStream, client: ByteStream, clock: asyncio.Timeout) -> None:
        send = self._meter(client.write, "received_bytes", clock)
        while piece := await upstream.read():
            await send(piece)
        client.end()

    async def _copy_hello(
        self, head: Head, client: ByteStream, incoming: Input, send: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Pass on a tunnel's first bytes: TLS for the tunnel's host, or anything where the entry says so."""
        entry, hello, name = self._allowed.entry_for(head.host, head.port), b"", None
        assert entry is not None
        try:
            while name is None:
                hello += await incoming.some(PIECE_BYTES)
                name = server_name(hello)
            if address_of(head.host) is None and canonical_host(name) != head.host:
                raise NotTls("TLS for another host")
        except ValueError as error:
            if not entry.is_any_protocol or hello[:1] == b"\x16":
                self._count("refused")
                log.info("%s: refused in a tunnel to %s: %s", self._name, _shown(head.host, head.port), error)
                await client.write(_UNRECOGNIZED_NAME)
                client.end()
                await _linger(client)
                raise EOFError from error
        await send(hello)

    def _meter(
        self, write: Callable[[bytes], Awaitable[None]], count: str, clock: asyncio.Timeout
    ) -> Callable[[bytes], Awaitable[None]]:
        """The write, counted against the session's limit, and a sign of life."""

        async def metered(data: bytes) -> None:
            self._count(count, len(data))
            if self._num_bytes() > self._limits.max_bytes:
                log.info("%s: the session used up its bytes of network", self._name)
                raise _UsedUp
            await write(data)
            if not clock.expired():
                clock.reschedule(asyncio.get_running_loop().time() + self._limits.idle_timeout_s)

        return metered

    def _count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number
        self._tell_count(what, number)

    def _num_bytes(self) -> int:
        return self.counts["sent_bytes"] + self.counts["received_bytes"]

    async def _say(self, client: ByteStream, status: int, why: str) -> None:
        """An error page. The sentence also stands on the first line: most clients show that one alone."""
        body = why.encode() + b"\n"
        head = (
            f"HTTP/1.1 {status} {_ascii(why)}\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        async with asyncio.timeout(LINGER_S):
            await client.write(head.encode() + body)
        client.end()
        await _linger(client)


@contextlib.asynccontextmanager
async def _ended(*tasks: asyncio.Task[None]) -> AsyncIterator[None]:
    """No task outlives the block."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _shares(addresses: Sequence[Address], clock: asyncio.Timeout) -> Iterator[tuple[Address, float | None]]:
    """Each address with the time that it may take: what is left, by those that are left; the last takes all."""
    for num_left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        left_s = (clock.when() or 0.0) - asyncio.get_running_loop().time()
        yield address, left_s / num_left if num_left > 1 else None


async def _linger(client: ByteStream) -> None:
    """Read what the client still sends: closed at once, it might lose what it was told."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            size = 0
            while size < LINGER_BYTES and (piece := await client.read()):
                size += len(piece)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ascii(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:300]
