"""An HTTP proxy to allowed hosts: checks the host of each connection and carries its bytes."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from agentgym_sandboxes.network.allow_list import AllowList
from agentgym_sandboxes.network.client_hello import NotTls, server_name
from agentgym_sandboxes.network.connecting import Connector, Refused, Resolve
from agentgym_sandboxes.network.hosts import address_of, canonical_host, shown
from agentgym_sandboxes.network.limits import ProxyLimits
from agentgym_sandboxes.network.request import BadRequest, ClientRequest, Head
from agentgym_sandboxes.network.streams import ByteStream

log = logging.getLogger(__name__)

LINGER_S, LINGER_BYTES = 2.0, 1 << 20
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_UNRECOGNIZED_NAME = b"\x15\x03\x03\x00\x02\x02\x70"  # a fatal TLS alert


class _UsedUp(Exception):
    """The session's bytes are used up."""


class Proxy:
    """Serves the connections of one session.

    counts: of connections that were allowed, refused or failed; sent_bytes, received_bytes. count: called with each
    change of them.
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
        self._connector = Connector(allowed, limits.connect_timeout_s, resolve)
        self._on_count = count
        self._num_open = 0

    def close(self) -> None:
        self._connector.close()

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
        request = ClientRequest(client)
        try:
            if self._num_open > self._limits.max_connections:
                raise Refused(503, f"more than {self._limits.max_connections} connections at once", "busy")
            head = await self._head(request)
            self._check(head)
            upstream, address = await self._connector.connect(head.host, head.port)
            self._count("allowed")
            log.info("%s: connected to %s at %s", self._name, shown(head.host, head.port), address)
            try:
                if head.tunnel:
                    await client.write(_ESTABLISHED)
                    return await self._tunnel(head, client, request.rest, upstream)
                return await self._forward(head, client, request, upstream)
            finally:
                upstream.abort()
        except Refused as refused:
            if refused.counted_as != "busy":
                self._count(refused.counted_as)
            status, why = refused.status, str(refused)
        except BadRequest as error:
            self._count("refused")
            status, why = error.status, f"request refused: {error}"
        log.info("%s: %d %s", self._name, status, _ascii(why))
        await self._say(client, status, why)

    async def _head(self, request: ClientRequest) -> Head:
        try:
            async with asyncio.timeout(self._limits.head_timeout_s):
                return await request.read_head()
        except TimeoutError:
            raise BadRequest(408, "its head did not come in time") from None

    def _check(self, head: Head) -> None:
        if self._num_bytes() >= self._limits.max_bytes:
            raise Refused(403, f"the session used up its {self._limits.max_bytes} bytes of network", "refused")
        if self._allowed.entry_for(head.host, head.port) is None:
            where = shown(head.host, head.port)
            raise Refused(403, f"{where} is not on the allow list of this session: {self._allowed}", "refused")

    async def _forward(self, head: Head, client: ByteStream, request: ClientRequest, upstream: ByteStream) -> None:
        """One request; its connection ends with the response."""

        async def copy_request() -> None:
            send = self._meter(upstream.write, "sent_bytes", clock)
            await send(head.forward)
            try:
                await request.copy_body(send)
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

    async def _tunnel(self, head: Head, client: ByteStream, rest: bytes, upstream: ByteStream) -> None:
        """Bytes in both directions, after the client's beginning was seen to be meant for this host."""

        async def copy_there() -> None:
            send = self._meter(upstream.write, "sent_bytes", clock)
            await send(await self._read_hello(head, client, rest))
            while piece := await client.read():
                await send(piece)
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

    async def _read_hello(self, head: Head, client: ByteStream, hello: bytes) -> bytes:
        """A tunnel's first bytes: TLS for the tunnel's host, or anything where the entry permits it.

        Raises EOFError when they are refused, or end too soon.
        """
        entry = self._allowed.entry_for(head.host, head.port)
        assert entry is not None
        try:
            while (name := server_name(hello)) is None:
                piece = await client.read()
                if not piece:
                    raise EOFError
                hello += piece
            if address_of(head.host) is None and canonical_host(name) != head.host:
                raise NotTls("TLS for another host")
        except ValueError as error:
            if not entry.is_any_protocol or hello[:1] == b"\x16":
                self._count("refused")
                log.info("%s: refused in a tunnel to %s: %s", self._name, shown(head.host, head.port), error)
                await client.write(_UNRECOGNIZED_NAME)
                client.end()
                await _linger(client)
                raise EOFError from error
        return hello

    def _meter(
        self, write: Callable[[bytes], Awaitable[None]], count: str, clock: asyncio.Timeout
    ) -> Callable[[bytes], Awaitable[None]]:
        """The write, counted against the session's limit; it restarts the idle clock."""

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
        self._on_count(what, number)

    def _num_bytes(self) -> int:
        return self.counts["sent_bytes"] + self.counts["received_bytes"]

    async def _say(self, client: ByteStream, status: int, why: str) -> None:
        """An error page. The status line holds the text, too: most clients show only that."""
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


async def _linger(client: ByteStream) -> None:
    """Read what the client still sends: closed at once, the connection might lose our answer."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            size = 0
            while size < LINGER_BYTES and (piece := await client.read()):
                size += len(piece)


def _ascii(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:300]
