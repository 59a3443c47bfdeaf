"""A session reaches the hosts of its allow list through the proxy, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack

import pytest
import pytest_asyncio
from websites import Site, make_certificate, serve_site

from agentgym.errors import UserError
from agentgym.sandbox import Limits, RunStatus, Session
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.backend import DockerBackend

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.docker]

Sites = tuple[Site, Site, Site]
FETCH = """
import urllib.error, urllib.request
def fetch(url, data=None, **options):
    try:
        with urllib.request.urlopen(url, data, timeout=20, **options) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.reason
    except OSError as error:
        return str(error)
"""


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """A plain server, one with TLS, and one that no list names."""
    certificate = make_certificate(tmp_path_factory.mktemp("certificate"))
    with ExitStack() as stack:
        plain, secure, other = (stack.enter_context(serve_site(path)) for path in (None, certificate, None))
        yield plain, secure, other


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def online(docker: DockerBackend, sites: Sites) -> AsyncIterator[Session]:
    plain, secure, _ = sites
    hosts = (f"127.0.0.1:{plain.port}", f"127.0.0.1:{secure.port}", "*.example.org")
    async with docker.session(network=hosts) as session:
        assert (await session.run(FETCH)).status is RunStatus.OK
        yield session


async def value(session: Session, code: str, wall_s: float = 60.0) -> object:
    """What an expression of the session's Python is."""
    result = await session.run(f"print(repr({code}))", limits=Limits(wall_s=wall_s))
    assert (result.status, result.stderr) == (RunStatus.OK, ""), result
    return eval(result.stdout, {})


async def test_allowed_hosts_answer_in_python_and_in_commands(online: Session, sites: Sites) -> None:
    url = f"http://127.0.0.1:{sites[0].port}"
    assert await value(online, f"fetch('{url}/')") == b"hello "
    assert await value(online, f"fetch('{url}/', b'abc')") == b"hello abc"
    script = f"import urllib.request; print(urllib.request.urlopen('{url}/').read())"
    result = await online.exec(["python3", "-c", script])
    assert (result.stdout, result.stderr) == ("b'hello '\n", "")


async def test_tls_goes_from_end_to_end(online: Session, sites: Sites) -> None:
    secure = sites[1]
    assert secure.certificate is not None
    await online.write("site.pem", secure.certificate.read_bytes())
    await online.run("import ssl\ntrusting = ssl.create_default_context(cafile='site.pem')")
    url = f"https://127.0.0.1:{secure.port}/"
    assert await value(online, f"fetch('{url}', context=trusting)") == b"hello "
    assert "CERTIFICATE_VERIFY_FAILED" in str(await value(online, f"fetch('{url}')"))


async def test_everything_else_is_refused(online: Session, sites: Sites) -> None:
    trap = sites[2]
    refused = f"127.0.0.1:{trap.port} is not on the allow list of this session: "
    assert await value(online, f"fetch('http://127.0.0.1:{trap.port}/')") == (403, refused + _listed(sites))
    assert f"403 {refused}" in str(await value(online, f"fetch('https://127.0.0.1:{trap.port}/')"))
    for host in ("example.org", "169.254.169.254", "metadata", "[::1]", "0x7f000001"):
        answer = await value(online, f"fetch('http://{host}:{trap.port}/')")
        assert isinstance(answer, tuple) and answer[0] in (400, 403), (host, answer)
    assert trap.seen == []


def _listed(sites: Sites) -> str:
    return f"127.0.0.1:{sites[0].port}, 127.0.0.1:{sites[1].port}, *.example.org"


async def test_there_is_no_way_around_the_proxy(online: Session, sites: Sites) -> None:
    code = f"""
import os, socket
def direct(host, port):
    try:
        socket.create_connection((host, port), 2).close()
        return 'connected'
    except OSError as error:
        return type(error).__name__
places = [('127.0.0.1', {sites[0].port}), ('172.17.0.1', 80), ('8.8.8.8', 53), ('pypi.org', 443)]
outcomes = [direct(*place) for place in places]
links = os.listdir('/sys/class/net')
"""
    assert (await online.run(code)).status is RunStatus.OK
    assert "connected" not in str(await value(online, "outcomes"))
    assert await value(online, "links") == ["lo"]


async def test_many_megabytes_go_both_ways_at_once_and_calls_go_on(online: Session, sites: Sites) -> None:
    url = f"http://127.0.0.1:{sites[0].port}"
    code = f"""
import threading
sizes = []
def load(): sizes.append(len(fetch('{url}/bytes/8000000')))
def store(): sizes.append(len(fetch('{url}/', bytes(8000000))))
threads = [threading.Thread(target=work) for work in (load, store) * 3]
[thread.start() for thread in threads]
"""
    assert (await online.run(code)).status is RunStatus.OK
    assert await value(online, "1 + 1") == 2
    assert (
        await value(online, "[thread.join() for thread in threads] and sorted(sizes)") == [8000000] * 3 + [8000006] * 3
    )


HOSTILE = """
import os, socket
port = int(os.environ['http_proxy'].rpartition(':')[2])
def say(data, then_close=True):
    with socket.create_connection(('127.0.0.1', port), 30) as talking:
        talking.settimeout(30)
        try:
            talking.sendall(data)
            return talking.recv(4096) if then_close else b''
        except OSError as error:
            return type(error).__name__.encode()
"""


async def test_hostile_clients_are_answered_or_dropped_and_leave_nothing(
    online: Session, sites: Sites, docker: DockerBackend
) -> None:
    plain, _, trap = sites
    plain.seen.clear()
    num_refused = docker.metrics()["sandbox/network_refused_total"]
    assert (await online.run(HOSTILE)).status is RunStatus.OK
    good, bad = f"127.0.0.1:{plain.port}", f"127.0.0.1:{trap.port}"
    ask = f"GET http://{good}/ HTTP/1.1\r\nHost: {good}\r\n"
    requests = [
        f"{ask}\r\nGET http://{bad}/ HTTP/1.1\r\nHost: {bad}\r\n\r\n",
        f"{ask}Host: {bad}\r\n\r\n",
        "X" * 100_000,
    ]
    answers = [await value(online, f"say({text!r}.encode('latin-1'))[:12]") for text in requests]
    assert answers[:2] == [b"HTTP/1.1 200", b"HTTP/1.1 400"] and len(plain.seen) == 1
    assert answers[2] in (b"HTTP/1.1 431", b"BrokenPipeErr"[:12], b"ConnectionRe")
    assert trap.seen == []
    assert await value(online, "[say(b'GET', False) for _ in range(700)] and 1") == 1
    idle = "sockets = [socket.create_connection(('127.0.0.1', port), 60) for _ in range(100)]"
    waiting = await online.run(idle, limits=Limits(wall_s=60.0))
    assert waiting.status is RunStatus.OK  # more than are served wait their turn
    assert await value(online, f"[s.close() for s in sockets] and fetch('http://{good}/')") == b"hello "
    assert docker.metrics()["sandbox/network_refused_total"] >= num_refused + 2


async def test_one_sessions_list_is_not_anothers(docker: DockerBackend, sites: Sites) -> None:
    plain, _, other = sites
    lists: list[tuple[str, ...]] = [(f"127.0.0.1:{plain.port}",), (f"127.0.0.1:{other.port}",), ()]
    answers = []
    async with AsyncExitStack() as stack:
        for network in lists:
            session = await stack.enter_async_context(docker.session(network=network))
            await session.run(FETCH)
            urls = [f"http://127.0.0.1:{site.port}/" for site in (plain, other)]
            answers.append([str(await value(session, f"fetch({url!r})")) for url in urls])
            proxy = await value(session, "__import__('os').environ.get('http_proxy')")
            assert (proxy is not None) == bool(network)
    [[one, other_one], [two, other_two], neither] = answers
    assert one == other_two == "b'hello '"
    assert "not on the allow list" in other_one and "not on the allow list" in two
    assert all("Connection refused" in answer for answer in neither)


async def test_a_closed_session_closes_its_connections(docker: DockerBackend) -> None:
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(4096):
                pass
        except ConnectionError:
            pass
        ended.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with docker.session(network=(host,)) as session:
            await session.run(HOSTILE)
            connect = f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            code = f"held = socket.create_connection(('127.0.0.1', port)); held.sendall({connect!r})"
            assert (await session.run(code)).status is RunStatus.OK
            assert "200" in (await session.run("print(held.recv(100))")).stdout
            assert not ended.is_set()
        await asyncio.wait_for(ended.wait(), 60)
    assert not [task for task in asyncio.all_tasks() if "Outbound" in repr(task)]


async def test_a_reset_session_is_still_online(docker: DockerBackend, sites: Sites) -> None:
    async with docker.session(network=(f"127.0.0.1:{sites[0].port}",)) as session:
        await session.reset()
        await session.run(FETCH)
        assert await value(session, f"fetch('http://127.0.0.1:{sites[0].port}/')") == b"hello "


async def test_a_network_that_names_no_host_is_the_users_error(docker: DockerBackend) -> None:
    with pytest.raises(UserError, match="network entry 'http://pypi"):
        async with docker.session(network=("http://pypi.org",)):
            pass


async def test_the_backend_says_that_it_has_allow_lists(docker: DockerBackend) -> None:
    assert (await docker.probe()).network_allow_list
    assert docker.supports(SandboxSpec(session=True, network=("pypi.org",)))
