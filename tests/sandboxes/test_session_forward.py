"""A program inside a session reaches one server of ours on its loopback interface, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from test_session_network import FETCH, value
from websites import serve_site

from agentgym.errors import UserError
from agentgym.sandbox import RunStatus, Session
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.network.forward import Forward

docker_only = pytest.mark.docker
KEY = "right"
ASK = """
def ask(port, key, body=b'', path='/v1/chat/completions'):
    headers = {'authorization': 'Bearer ' + key}
    return fetch(urllib.request.Request(f'http://127.0.0.1:{port}{path}', body, headers))
"""
OTHERS = """
import socket
def closed(host, port):
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        return type(error).__name__
    return 'open'
"""


class KeyedServer:
    """Answers a POST with its length to who has the key, and 401 to all others. connections: that are open."""

    def __init__(self) -> None:
        self.connections = 0
        self.idle = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.idle.clear()
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next((int(line.split(":")[1]) for line in head.splitlines() if "content-length" in line), 0)
            body = await reader.readexactly(length)
            right = f"authorization: bearer {KEY}\r\n" in head
            answer = b"%d " % len(body) + body[::-1] if right else b"no such key"
            status = b"200 OK" if right else b"401 Unauthorized"
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(answer)))
            writer.write(answer)
            await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()
            self.connections -= 1
            if not self.connections:
                self.idle.set()


@asynccontextmanager
async def keyed_server(path: Path | None) -> AsyncIterator[tuple[KeyedServer, str]]:
    """On a Unix socket, or on the loopback interface; with what a session is given as its target."""
    keyed = KeyedServer()
    if path is not None:
        server = await asyncio.start_unix_server(keyed.serve, path)
        target = f"unix:{path}"
    else:
        server = await asyncio.start_server(keyed.serve, "127.0.0.1", 0)
        target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield keyed, target


async def prepared(session: Session) -> Session:
    assert (await session.run(FETCH + ASK + OTHERS)).status is RunStatus.OK
    return session


@docker_only
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("kind", ["unix", "http"])
async def test_a_session_without_network_reaches_the_endpoint_alone(
    docker: DockerBackend, tmp_path: Path, kind: str
) -> None:
    async with keyed_server(tmp_path / "s" if kind == "unix" else None) as (_, target):
        with serve_site(None) as trap:
            async with docker.session() as leased:
                session = await prepared(leased)
                port = await session.forward(target)
                assert await session.forward(target) == port, "asked again it is the same"
                assert await value(session, f"ask({port}, {KEY!r}, b'abc')") == b"3 cba"
                assert await value(session, f"ask({port}, 'other', b'abc')") == (401, "Unauthorized")
                big = "bytes(range(256)) * 16384"
                assert await value(session, f"ask({port}, {KEY!r}, {big}) == b'4194304 ' + ({big})[::-1]") is True
                assert await value(session, f"closed('127.0.0.1', {trap.port})") == "ConnectionRefusedError"
                if kind == "http":
                    own = int(target.rpartition(":")[2])
                    assert (
                        own == port or await value(session, f"closed('127.0.0.1', {own})") == "ConnectionRefusedError"
                    )
                for host in ("172.17.0.1", "1.1.1.1"):
                    assert await value(session, f"closed({host!r}, {trap.port})") == "OSError", "no route"
                asked = f"fetch('http://127.0.0.1:{trap.port}/')"
                through = f"ask({port}, {KEY!r}, b'', 'http://127.0.0.1:{trap.port}/')"
                assert "refused" in str(await value(session, asked)), "and it is not a proxy:"
                assert "hello" not in str(await value(session, through))


@docker_only
@pytest.mark.asyncio(loop_scope="session")
async def test_an_endpoint_and_an_allow_list_go_together_and_connections_end_with_the_session(
    docker: DockerBackend, tmp_path: Path
) -> None:
    async with keyed_server(tmp_path / "s") as (keyed, target):
        with serve_site(None) as site:
            async with docker.session(network=(f"127.0.0.1:{site.port}",)) as leased:
                session = await prepared(leased)
                port = await session.forward(target)
                assert await value(session, f"fetch('http://127.0.0.1:{site.port}/')") == b"hello "
                direct = "urllib.request.install_opener(urllib.request.build_opener(urllib.request.ProxyHandler({})))"
                await session.run(direct)
                assert await value(session, f"ask({port}, {KEY!r}, b'ab')") == b"2 ba"
                with pytest.raises(UserError, match="port leads to unix:"):
                    await session.forward("unix:/other")
                await session.run(f"kept = socket.create_connection(('127.0.0.1', {port})); kept.sendall(b'POST ')")
                async with asyncio.timeout(30):
                    while not keyed.connections:
                        await asyncio.sleep(0.01)
            async with asyncio.timeout(30):
                await keyed.idle.wait()


@pytest.mark.parametrize(
    "target",
    [
        "http://example.org:80",
        "http://127.0.0.1",
        "https://127.0.0.1:1",
        "http://127.0.0.1:1/v1",
        "/run/s",
        "http://[:1",
    ],
)
def test_a_target_that_is_not_of_this_machine_is_refused(target: str) -> None:
    with pytest.raises(UserError, match="a server of this machine"):
        Forward(target)
