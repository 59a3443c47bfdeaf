"""Clients that never end what they send, or send nothing, at each HTTP server: they are refused, others answered."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count, repeat
from tempfile import TemporaryDirectory

import pytest
import uvicorn
from handlers import FakeHandler

from agentgym.http_server import Bounds, configure
from agentgym.serve.endpoint import Endpoint
from agentgym.tables.roots import Roots
from agentgym.view.app import View
from agentgym.view.server import listen, serve

KEY = "sk-of-the-tests"
STORM_BYTES = 60_000_000
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer %s\r\n" % KEY.encode()
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
# A beginning, and what follows it without end.
FLOODS: dict[str, tuple[bytes, Callable[[], Iterator[bytes]]]] = {
    "header lines": (POST, lambda: (b"x-%d: 1\r\n" % n for n in count())),
    "one header": (POST + b"x: ", lambda: repeat(b"x")),
    "a header's name": (POST, lambda: repeat(b"x")),
    "one address": (b"GET /", lambda: repeat(b"x")),
    "empty lines": (b"", lambda: repeat(b"\r\n")),
    "trailers": (CHUNKED + b"1\r\n{\r\n0\r\n", lambda: (b"x-%d: 1\r\n" % n for n in count())),
    "a chunk's extensions": (CHUNKED + b"1;x", lambda: repeat(b"x")),
    "extensions of chunks": (CHUNKED, lambda: repeat(b"1;%s\r\n \r\n" % (b"x" * 200))),
    "requests without a pause": (b"", lambda: repeat(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")),
    "a body": (CHUNKED, lambda: repeat(b"400\r\n%s\r\n" % (b" " * 1024))),
}


@asynccontextmanager
async def endpoint(bounds: Bounds) -> AsyncIterator[int]:
    async with Endpoint(max_body_bytes=100_000, bounds=bounds) as server:
        server.admit(FakeHandler(), key=KEY)
        yield int(server.url.rpartition(":")[2])


@asynccontextmanager
async def view(bounds: Bounds) -> AsyncIterator[int]:
    up = asyncio.Event()
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    with TemporaryDirectory() as folder:
        pages = View(roots=Roots.of([folder]))
        serving = asyncio.create_task(serve(pages, "127.0.0.1", listening, lambda _: up.set(), bounds))
        try:
            await up.wait()
            yield port
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving


SERVERS = pytest.mark.parametrize("server", [endpoint, view])


async def ask(port: int, sent: bytes) -> tuple[int, int]:
    """Send a beginning, wait until the server closes; the answer's status (0 without one) and the number of answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        answer = await reader.read()
    except OSError:
        answer = b""
    finally:
        writer.close()
    return int(answer[9:12] or 0), answer.count(b"HTTP/1.1 ")


async def is_answered(port: int) -> bool:
    return (await ask(port, b"GET /api HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"))[0] in (200, 404)


async def bytes_taken(port: int, beginning: bytes, rest: Iterator[bytes]) -> int:
    """How much the server takes before it ends the connection; no more than STORM_BYTES are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    taken = len(beginning)
    try:
        writer.write(beginning)
        while taken < STORM_BYTES and not reader.at_eof():
            piece = b"".join(part for part, _ in zip(rest, range(20_000), strict=False))
            writer.write(piece)
            await writer.drain()
            taken += len(piece)
    except OSError:
        return taken
    finally:
        writer.transport.abort()
    return taken


@SERVERS
@pytest.mark.parametrize("flood", FLOODS)
async def test_what_never_ends_is_cut_off_and_others_are_answered(server, flood: str) -> None:
    beginning, rest = FLOODS[flood]
    async with asyncio.timeout(60), server(Bounds()) as port:
        storm = asyncio.create_task(bytes_taken(port, beginning, rest()))
        assert await is_answered(port)
        assert await storm < STORM_BYTES // 4
        assert await is_answered(port)


@SERVERS
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"".join(b"x-%d: 1\r\n" % n for n in range(100)), 431),
        (b"x: %s\r\n" % (b"1" * 32_768), 431),
        (b"".join(b"x-%d: %s\r\n" % (n, b"1" * 320) for n in range(95)), 0),
        (b"connection: close, upgrade\r\nupgrade: websocket\r\n", 0),
    ],
    ids=["many headers", "a long header", "as much as is allowed", "an upgrade"],
)
async def test_a_head_that_comes_at_once_is_bounded_too(server, head: bytes, status: int) -> None:
    async with asyncio.timeout(60), server(Bounds()) as port:
        sent = b"GET /api HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n" + head + b"\r\n"
        assert (await ask(port, sent))[0] in ((status,) if status else (200, 404))


@SERVERS
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", 408),
        (b"\r\n", 408),
        (b"GET / HTTP/1.1\r\nhost:", 408),
        (POST + b"content-length: 9\r\n\r\n{", 0),
        (b"GET /api HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET", 0),
    ],
)
async def test_who_stops_in_the_middle_of_a_request_is_not_waited_for(server, sent: bytes, status: int) -> None:
    async with asyncio.timeout(60), server(Bounds(head_s=0.02, body_s=0.02)) as port:
        found, _ = await ask(port, sent)
        assert found == status or not status
        assert await is_answered(port)


@SERVERS
async def test_a_connection_too_many_is_refused_until_another_ends(server) -> None:
    async with asyncio.timeout(60), server(Bounds(max_connections=2)) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        while await is_answered(port):  # until the server has accepted both
            pass
        assert (await ask(port, b"")) == (503, 1)
        for _, writer in silent:
            writer.close()
        while not await is_answered(port):
            pass


async def test_a_body_in_many_small_chunks_is_read() -> None:
    async with asyncio.timeout(60), endpoint(Bounds()) as port:
        body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}' + b" " * 20_000
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        close = CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        assert await ask(port, close + chunks + b"0\r\n\r\n") == (200, 1)


async def test_a_few_requests_without_a_pause_are_all_answered() -> None:
    async with asyncio.timeout(60), endpoint(Bounds()) as port:
        one = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\n\r\n" % KEY.encode()
        assert await ask(port, one * 5 + one.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")) == (200, 6)


SIZE = 30_000_000  # more than sockets hold


@asynccontextmanager
async def answering(bounds: Bounds) -> AsyncIterator[tuple[int, uvicorn.Server]]:
    """A server whose answers are large, and which keeps no idle connection."""

    async def app(scope, receive, send) -> None:
        headers = [(b"content-length", b"%d" % SIZE)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * SIZE})

    server = uvicorn.Server(configure(app, bounds, lifespan="off", log_config=None, timeout_keep_alive=0))
    listening = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server._serve([listening]))
    try:
        yield listening.getsockname()[1], server
    finally:
        server.should_exit = True
        await serving
        listening.close()


async def test_an_answer_that_is_read_slowly_comes_whole_and_one_that_is_not_read_is_dropped() -> None:
    async with asyncio.timeout(60), answering(Bounds(head_s=20.0)) as (port, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        while not any(one._unsent for one in server.server_state.connections):
            await asyncio.sleep(0)  # until the time of an idle connection is over
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(SIZE)) == SIZE
        writer.transport.abort()
    async with asyncio.timeout(60), answering(Bounds(head_s=0.02)) as (port, server):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        while not server.server_state.total_requests or server.server_state.connections:
            await asyncio.sleep(0.001)
        writer.transport.abort()


async def test_an_answer_in_two_pieces_does_not_wait_for_the_acknowledgement_of_the_first() -> None:
    async with asyncio.timeout(60), answering(Bounds()) as (port, server):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        while not server.server_state.connections:
            await asyncio.sleep(0)
        (connection,) = server.server_state.connections
        own = connection.transport.get_extra_info("socket")
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.transport.abort()
