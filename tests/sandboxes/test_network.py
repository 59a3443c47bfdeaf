"""The allow list and the proxy, over plain sockets; test_session_network.py has them in a sandbox."""

from __future__ import annotations

import asyncio
import collections
import ipaddress
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest
from websites import Site, client_hello, get, serve_site

from agentgym.errors import UserError
from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.docker.session_network import SessionNetworks, proxy_environment
from agentgym_sandboxes.network.allow_list import AllowList, PublicHosts
from agentgym_sandboxes.network.client_hello import NotTls, server_name
from agentgym_sandboxes.network.hosts import Address, is_own, is_public
from agentgym_sandboxes.network.limits import ProxyLimits
from agentgym_sandboxes.network.proxy import Proxy
from agentgym_sandboxes.network.streams import SocketStream


@pytest.fixture
def site() -> Iterator[Site]:
    with serve_site() as site:
        yield site


async def loopback(host: str, port: int) -> Sequence[Address]:
    """A resolver that takes every name for this machine."""
    return [ipaddress.ip_address("127.0.0.1")]


@asynccontextmanager
async def serve_proxy(*entries: str, limits: ProxyLimits | None = None) -> AsyncIterator[tuple[Proxy, int]]:
    """A proxy on a port of this machine, where all names lead to 127.0.0.1."""
    proxy = Proxy("test", AllowList(entries), limits or ProxyLimits(), loopback)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(proxy.serve(SocketStream(reader, writer))))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield proxy, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        proxy.close()
        assert [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)] == []


async def talk(port: int, *pieces: bytes, end: bool = False) -> bytes:
    """Send, piece by piece, and read to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if end:
            writer.write_eof()
        async with asyncio.timeout(30):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def connect(host: str) -> bytes:
    return f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
    [
        ("pypi.org", ["pypi.org:443", "PyPI.org.:80"], ["pypi.org:8080", "a.pypi.org:443", "evilpypi.org:443"]),
        ("*.example.org", ["a.example.org:443", "a.b.example.org:80"], ["example.org:443", "xexample.org:443"]),
        ("Host.:8080", ["host:8080"], ["host:80", "host:443"]),
        ("bücher.example", ["xn--bcher-kva.example:443"], ["bucher.example:443"]),
        ("10.0.0.7", ["10.0.0.7:80"], ["10.0.0.70:80", "10.0.0.7:81"]),
        ("[::1]:8000", ["[0:0::1]:8000"], ["[::1]:80", "[::2]:8000"]),
        ("fd00::1", ["[fd00::1]:443"], ["[fd00::2]:443"]),
    ],
)
def test_an_entry_allows_what_it_names(entry: str, allowed: list[str], refused: list[str]) -> None:
    from agentgym_sandboxes.network.hosts import split_port

    allow_list = AllowList(["other.example", entry])
    assert [where for where in allowed if allow_list.entry_for(*split_port(where, None)) is None] == []
    assert [where for where in refused if allow_list.entry_for(*split_port(where, None)) is not None] == []


@pytest.mark.parametrize(
    "entry",
    ["", ".", "*", "*.", "*.org", "a..b", "http://pypi.org", "pypi.org/simple", "10.0.0.0/8", "a b", "host:",
     "host:0", "host:65536", "host:x", "u@host", "a*.org", "*.*.org", "-a.org", "1.2.3", "0x7f000001", "2130706433",
     "*.1.2.3.4", "[::1", "[fe80::1%eth0]", "a" * 64 + ".org", "a\n.org", "ü" * 300],
)  # fmt: skip
def test_an_entry_that_names_no_host_is_the_users_error(entry: str) -> None:
    with pytest.raises(UserError, match="Allowed are"):
        AllowList([entry])


RESERVED = (  # from the registries of IANA; and the addresses of a cloud's own services
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
    "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
    "224.0.0.0/4", "240.0.0.0/4", "::/96", "::1/128", "64:ff9b:1::/48", "100::/64", "2001::/32", "2001:db8::/32",
    "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "168.63.129.16/32",
)  # fmt: skip


def forms(address: Address) -> list[Address]:
    """An address, and those of IPv6 that lead to it."""
    prefixes = (0xFFFF << 32, 0x64FF9B << 96) if address.version == 4 else ()
    return [address, *(ipaddress.IPv6Address(prefix | int(address)) for prefix in prefixes)]


@pytest.mark.parametrize("text", RESERVED)
def test_addresses_of_our_own_networks_are_not_public(text: str) -> None:
    network = ipaddress.ip_network(text)
    for address in (network[0], network[network.num_addresses // 3], network[-1]):
        assert not any(map(is_public, forms(address))), address


@pytest.mark.parametrize("address", ["8.8.8.8", "151.101.0.223", "9.255.255.255", "172.32.0.0", "2a04:4e42::223"])
def test_public_addresses_are_public(address: str) -> None:
    assert all(map(is_public, forms(ipaddress.ip_address(address))))


def test_an_address_of_this_machine_is_known_as_its_own() -> None:
    assert is_own(ipaddress.ip_address("127.0.0.1"))
    assert not is_own(ipaddress.ip_address("8.8.8.8"))


async def test_a_name_that_leads_to_a_private_address_is_refused_unless_the_address_is_listed(site: Site) -> None:
    async with serve_proxy(f"site.example:{site.port}") as (proxy, port):
        answer = await talk(port, get(f"site.example:{site.port}"))
        assert answer.startswith(b"HTTP/1.1 403 ") and b"leads to 127.0.0.1" in answer
        assert (site.seen, proxy.counts["refused"]) == ([], 1)
    async with serve_proxy(f"site.example:{site.port}", f"127.0.0.1:{site.port}") as (proxy, port):
        assert (await talk(port, get(f"site.example:{site.port}"))).endswith(b"hello ")
        assert proxy.counts["allowed"] == 1


async def test_what_is_not_listed_is_refused_by_name_and_list(site: Site) -> None:
    async with serve_proxy("pypi.org", "*.example.org") as (proxy, port):
        for asked in (get("evil.example"), connect("evil.example:80")):
            first, _, rest = (await talk(port, asked)).partition(b"\r\n")
            for text in (first, rest):
                assert b"evil.example:80 is not on the allow list" in text
                assert b"pypi.org, *.example.org" in text
        assert proxy.counts["refused"] == 2


async def test_a_request_is_passed_on_without_what_was_meant_for_the_proxy(site: Site) -> None:
    host = f"127.0.0.1:{site.port}"
    async with serve_proxy(host) as (_, port):
        extra = "Proxy-Authorization: secret\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\n"
        answer = await talk(port, get(host, "/path?q=http://x/", extra))
    assert answer.endswith(b"hello ")
    [(method, path, headers, _)] = site.seen
    assert (method, path) == ("GET", "/path?q=http://x/")
    assert headers == {"Host": host, "X-Kept": "2", "Connection": "close"}


async def test_bodies_of_every_kind_arrive(site: Site) -> None:
    host = f"127.0.0.1:{site.port}"
    async with serve_proxy(host) as (_, port):
        long = b"y" * 300_000
        short = get(host, "/", "Content-Length: 3\r\nConnection: content-length\r\n", "POST")
        assert (await talk(port, short, b"a", b"bc")).endswith(b"hello abc")
        assert (await talk(port, get(host, "/", f"Content-Length: {len(long)}\r\n", "POST"), long)).endswith(
            b"hello " + long
        )
        chunked = get(host, "/", "Transfer-Encoding: chunked\r\n", "POST")
        assert (await talk(port, chunked, b"3\r", b"\nabc\r\n1\r\nd", b"\r\n0\r\n\r\n")).endswith(b"hello abcd")


async def test_a_second_request_on_a_connection_goes_nowhere(site: Site) -> None:
    host = f"127.0.0.1:{site.port}"
    smuggled = get("evil.example") + get(host, "/second")
    async with serve_proxy(host) as (_, port):
        await talk(port, get(host) + smuggled)
        await talk(port, get(host, "/", "Content-Length: 1\r\n", "POST") + b"a" + smuggled)
        await talk(port, get(host, "/", "Transfer-Encoding: chunked\r\n", "POST") + b"0\r\n\r\n" + smuggled)
    assert [(path, body) for _, path, _, body in site.seen] == [("/", b""), ("/", b"a"), ("/", b"")]


async def test_a_head_that_is_too_long_or_too_slow_is_refused() -> None:
    async with serve_proxy("a.example", limits=ProxyLimits(head_timeout_s=0.3)) as (_, port):
        answer = await talk(port, b"GET http://a/" + b"x" * 100_000)
        assert answer[:13] in (b"HTTP/1.1 431 ", b"")  # nothing, when the connection was reset before
        assert (await talk(port, b"GET http://a/ HTTP/1.1\r\nX: ")).startswith(b"HTTP/1.1 408 ")


@asynccontextmanager
async def serve_echo() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that echoes, its port, and what it receives."""
    received: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            received.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], received


def tunnel_proxy(upstream: int) -> AbstractAsyncContextManager[tuple[Proxy, int]]:
    return serve_proxy(f"site.example:{upstream}", f"127.0.0.1:{upstream}")


async def test_a_tunnel_carries_tls_for_its_own_host_only() -> None:
    async with serve_echo() as (upstream, received), tunnel_proxy(upstream) as (proxy, port):
        opening = connect(f"site.example:{upstream}")
        for hello in (
            client_hello("evil.example"),
            client_hello(None),
            client_hello("site.example", extra=b"\xfe\x0d\x00\x01\x00"),
            client_hello("site.example")[:20] + b"\xff" * 500,
        ):
            assert (await talk(port, opening, hello)).endswith(b"established\r\n\r\n\x15\x03\x03\x00\x02\x02\x70")
        assert (received, proxy.counts["refused"]) == ([], 4)
        hello = client_hello("Site.Example")
        pieces = [hello[start : start + 7] for start in range(0, len(hello), 7)]
        assert (await talk(port, opening + pieces[0], *pieces[1:], end=True)).endswith(hello)
        assert b"".join(received) == hello


async def test_only_an_entry_with_a_port_tunnels_anything_but_tls() -> None:
    async with serve_echo() as (upstream, received), tunnel_proxy(upstream) as (_, port):
        opening = connect(f"site.example:{upstream}")
        assert (await talk(port, opening, b"EHLO", end=True)).endswith(b"EHLO")
    assert received == [b"EHLO"]
    allowed = AllowList(["site.example", "127.0.0.1"])
    assert [entry.is_any_protocol for entry in allowed.entries] == [False, False]


async def test_the_bytes_of_a_session_have_a_limit(site: Site) -> None:
    host = f"127.0.0.1:{site.port}"
    async with serve_proxy(host, limits=ProxyLimits(max_bytes=100_000)) as (proxy, port):
        assert len(await talk(port, get(host, "/bytes/50000"))) > 50_000
        assert len(await talk(port, get(host, "/bytes/5000000"))) < 60_000
        assert b"used up its 100000 bytes" in await talk(port, get(host))
        assert proxy.counts["refused"] == 1


async def test_connections_at_once_have_a_limit(site: Site) -> None:
    host = f"127.0.0.1:{site.port}"
    async with serve_proxy(host, limits=ProxyLimits(max_connections=2)) as (_, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        assert (await talk(port, get(host))).startswith(b"HTTP/1.1 503 ")
        for _, writer in idle:
            writer.transport.abort()
        while b" 503 " in (answer := await talk(port, get(host))):
            await asyncio.sleep(0.01)
        assert answer.endswith(b"hello ")


async def test_a_client_that_goes_away_frees_its_connection_and_a_server_that_does_not_answer_too() -> None:
    async def sleep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(sleep, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, serve_proxy(host, limits=ProxyLimits(idle_timeout_s=0.3)) as (proxy, port):
        assert await talk(port, get(host)) == b""
        assert proxy.counts["allowed"] == 1


@pytest.mark.parametrize("size", [0, 1, 5, 6, 40])
def test_a_hello_that_is_cut_needs_more(size: int) -> None:
    assert server_name(client_hello("a.example")[:size]) is None
    assert server_name(client_hello("a.example")) == "a.example"
    assert server_name(client_hello(None)) == ""


@pytest.mark.parametrize("data", [b"GET /", b"\x16\x02", b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x00\x00" * 20,
                                  b"\x16\x03\x01\x00\x01\x01" * 20])  # fmt: skip
def test_what_is_not_a_hello_is_not_tls(data: bytes) -> None:
    with pytest.raises(NotTls):
        server_name(data)


async def test_without_h11_a_session_with_an_allow_list_names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("proxy", "request"):
        monkeypatch.delitem(sys.modules, f"agentgym_sandboxes.network.{module}")
    monkeypatch.setitem(sys.modules, "h11", None)
    networks = SessionNetworks(1 << 20, collections.Counter())
    with pytest.raises(SandboxUnavailable, match=r"h11.*pip install 'gymwright\[docker\]'"):
        async with AsyncExitStack() as stack:
            await networks.open(object(), ["pypi.org"], stack)  # type: ignore[arg-type]


def test_a_sessions_own_servers_are_reached_without_the_proxy() -> None:
    assert proxy_environment(5, AllowList(["pypi.org"]))["NO_PROXY"] == "localhost,127.0.0.1,::1"
    assert proxy_environment(5, AllowList(["127.0.0.1:80"]))["no_proxy"] == "localhost,::1"
    assert proxy_environment(5, AllowList([]))["https_proxy"] == "http://127.0.0.1:5"


def test_every_public_host_is_one_that_is_not_ours_at_any_port_and_with_any_protocol() -> None:
    hosts = PublicHosts()
    entry = hosts.entry_for("git.example.org", 22)
    assert entry is not None and entry.names("git.example.org", 22) and entry.is_any_protocol
    assert hosts.permits_address(ipaddress.ip_address("93.184.216.34"), 22)
    for address in ("127.0.0.1", "10.1.2.3", "169.254.169.254", "fd00::1", "::ffff:192.168.0.1"):
        assert not hosts.permits_address(ipaddress.ip_address(address), 443), address
