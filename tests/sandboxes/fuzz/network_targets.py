"""The allow list, and what the proxy makes of any bytes that a session sends it."""

from __future__ import annotations

import asyncio
import email
import ipaddress
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

from agentgym.errors import UserError
from agentgym_sandboxes.network.allow_list import AllowList
from agentgym_sandboxes.network.client_hello import NotTls, server_name
from agentgym_sandboxes.network.hosts import Address, canonical_host, split_port
from agentgym_sandboxes.network.limits import ProxyLimits
from agentgym_sandboxes.network.proxy import Proxy
from agentgym_sandboxes.network.request import BadRequest, ClientRequest
from fuzz import mutation
from fuzz.running import Target

ALLOWED = ("good.example", "*.wild.example", "bücher.example", "10.0.0.7:8080", "[::1]:8000")
HOSTS = ["good.example", "a.wild.example", "wild.example", "evil.example", "GOOD.example.", "10.0.0.7", "[::1]",
         "127.0.0.1", "0x7f.1", "good.example@evil.example", "evil.example#good.example",
         "xn--bcher-kva.example", ""]  # fmt: skip


def random_request(random: Random) -> bytes:
    """A request as a client makes it, or one that tries to be understood in two ways."""
    host = random.choice(HOSTS)
    port = random.choice(("", "", ":80", ":80", ":443", ":8080", ":99999", ":"))
    if random.random() < 0.2:
        return f"CONNECT {host}{port} HTTP/1.1\r\nHost: {random.choice(HOSTS)}\r\n\r\n".encode()
    method = random.choice(("GET", "POST", "PUT", "GET", "POST", "HEAD", "TRACE", "get"))
    headers = [f"Host: {host if random.random() < 0.9 else random.choice(HOSTS)}{port}"]
    headers += random.sample(
        ["Content-Length: 3", "Content-Length: 03", "Content-Length: 3, 3", "Transfer-Encoding: chunked",
         "Connection: close, x", "Transfer-Encoding : chunked", "X: y", " folded: z", "Upgrade: h2c",
         "Proxy-Connection: keep-alive", "Host: evil.example", "x\x00y: z", "Expect: 100-continue", "TE: trailers",
         "Connection: host", "A: \r b", "B: \n c"],
        k=random.choice((0, 1, 1, 2, 3)),
    )  # fmt: skip
    random.shuffle(headers)
    line = random.choice(("\r\n", "\r\n", "\r\n", "\r\n", "\n"))
    scheme = random.choice(("http", "http", "http", "http", "http", "HTTP", "https"))
    url = f"{scheme}://{host}{port}{random.choice(('/', '', '/a?b#c', '?q'))}"
    body = random.choice((b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"ffffffff\r\nabc", b"0;x\r\n\r\n"))
    head = line.join([f"{method} {url} HTTP/1.{random.choice('0111')}", *headers, "", ""])
    return head.encode("latin-1", "replace") + body


async def heads(random: Random) -> None:
    """What is forwarded is one request, to the host that was checked, in a form that can be read in one way."""
    data = random_request(random)
    if random.random() < 0.5:
        data = mutation.spoil(random, data)
    data = data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    try:
        head = await ClientRequest(Canned(mutation.pieces(random, data))).read_head()
    except BadRequest as error:
        assert 400 <= error.status < 600 and len(str(error)) < 400
        return
    assert canonical_host(f"[{head.host}]" if ":" in head.host else head.host) == head.host
    assert 1 <= head.port <= 65535
    if head.tunnel:
        return
    first, _, rest = head.forward.partition(b"\r\n")
    assert re.fullmatch(rb"[A-Z]+ /[!-~]* HTTP/1\.1", first), first
    assert head.forward.count(b"\r\n\r\n") == 1 and head.forward.endswith(b"\r\n\r\n")
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n|\x00", head.forward)
    fields = email.message_from_bytes(rest)
    assert not fields.defects, fields.defects
    assert [split_port(value, 80) for value in fields.get_all("host", [])] == [(head.host, head.port)]
    assert [value.lower() for value in fields.get_all("connection", [])] == ["close"]
    lengths, codings = fields.get_all("content-length", []), fields.get_all("transfer-encoding", [])
    assert len(lengths) + len(codings) <= 1 and all(re.fullmatch("[0-9]+", length) for length in lengths)
    assert codings in ([], ["chunked"])
    assert not any(name.lower().startswith("proxy-") or name.lower() == "upgrade" for name in fields)


def allow_lists(random: Random) -> None:
    """An entry allows its host, or what lies below it, label by label, and nothing else."""
    allowed = AllowList(ALLOWED)
    text = random.choice(HOSTS) + random.choice(("", ":80", ":443", ":8000", ":8080"))
    if random.random() < 0.6:
        text = mutation.spoil(random, text.encode()).decode("latin-1")
    try:
        host, port = split_port(text, 443)
    except ValueError:
        return
    assert re.fullmatch(r"[a-z0-9._:-]+", host), host
    labels = host.split(".")
    web = port in (80, 443)
    expected = (
        (host in ("good.example", "xn--bcher-kva.example") and web)
        or (labels[-2:] == ["wild", "example"] and len(labels) > 2 and web)
        or (host, port) in (("10.0.0.7", 8080), ("::1", 8000))
    )
    assert (allowed.entry_for(host, port) is not None) == expected, (host, port)


def entries(random: Random) -> None:
    """Any text for an entry: a list that allows just it, or the user's error."""
    text = random.choice([*ALLOWED, *HOSTS])
    text = mutation.spoil(random, text.encode()).decode("utf-8", "replace")
    try:
        [entry] = AllowList([text]).entries
    except UserError:
        return
    assert re.fullmatch(r"[a-z0-9._:-]+", entry.host) and all(1 <= port <= 65535 for port in entry.ports)
    assert entry.names(entry.host, entry.ports[0]) != entry.subdomains
    assert not entry.names("evil" + entry.host, entry.ports[0])


def random_hello(random: Random) -> bytes:
    """A TLS client's first bytes, in one record or several."""

    def field(size: int, data: bytes) -> bytes:
        return len(data).to_bytes(size) + data

    name = random.choice((b"good.example", b"evil.example", b"", b"\xff", b"a" * 300))
    extensions = [b"\x00\x00" + field(2, field(2, b"\x00" + field(2, name)))]
    extensions += random.sample([b"\x00\x10" + field(2, b"h2"), b"\xfe\x0d" + field(2, b"x"), b"\x7a\x7a\x00\x00"], 1)
    random.shuffle(extensions)
    hello = (
        b"\x03\x03" + bytes(32) + field(1, b"s" * random.choice((0, 32))) + field(2, b"\x13\x01") + field(1, b"\x00")
    )
    message = b"\x01" + field(3, hello + field(2, b"".join(extensions)))
    size = random.choice((len(message), 50, 200))
    return b"".join(b"\x16\x03\x01" + field(2, message[start : start + size]) for start in range(0, len(message), size))


def hellos(random: Random) -> None:
    """A name, nothing yet, or no TLS; and more bytes never change a name that was found."""
    data = random_hello(random)
    if random.random() < 0.7:
        data = mutation.spoil(random, data)
    names: list[object] = []
    for end in sorted({random.randint(0, len(data)) for _ in range(8)} | {len(data)}):
        try:
            names.append(server_name(data[:end]))
        except NotTls:
            names.append(NotTls)
    while names and names[0] is None:
        names.pop(0)
    assert all(answer == names[0] for answer in names), names


async def bodies(random: Random) -> None:
    """Only the body goes on, framed anew; what follows it stays behind."""
    parts = [random.randbytes(random.randint(1, 50)) for _ in range(random.randint(0, 4))]
    data = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    spoiled = mutation.spoil(random, data) if random.random() < 0.6 else data
    sent: list[bytes] = []

    async def send(piece: bytes) -> None:
        sent.append(piece)

    head = b"POST http://a/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    request = ClientRequest(Canned(mutation.pieces(random, head + spoiled + b"GET http://evil.example/")))
    await request.read_head()
    try:
        await request.copy_body(send)
    except (BadRequest, EOFError):
        return
    out, body = b"".join(sent), b""
    rest = out
    while (size := int(rest[: rest.index(b"\r\n")], 16)) > 0:
        start = rest.index(b"\r\n") + 2
        body, rest = body + rest[start : start + size], rest[start + size :]
        assert rest[:2] == b"\r\n"
        rest = rest[2:]
    assert rest == b"0\r\n\r\n"
    if spoiled == data:
        assert body == b"".join(parts)


class Canned:
    """A client that sends what it was given, then nothing more, and keeps what it receives."""

    def __init__(self, given: Sequence[bytes]) -> None:
        self._given = list(given)
        self.written = b""

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return self._given.pop(0) if self._given else b""

    async def write(self, data: bytes) -> None:
        self.written += data

    def end(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ProxyCases:
    """Connections to a proxy, with two servers behind it: one that is allowed and one that is a trap."""

    def __init__(self, good: int, trap: int) -> None:
        self.ports = good, trap
        self.received: list[bytes] = []
        self.trapped: list[bytes] = []

    async def case(self, random: Random) -> None:
        """Whatever a client sends, the trap receives nothing and the allowed server only what is meant for it."""
        good, trap = self.ports
        self.received.clear()
        sent = []
        for _ in range(random.randint(1, 3)):
            data = random_request(random)
            for name in ("good.example", "a.wild.example", "10.0.0.7", "evil.example"):
                data = data.replace(
                    name.encode() + b":8080", name.encode() + b":%d" % random.choice((good, good, trap))
                )
            sent.append(data + random.choice((b"", random_hello(random))))
        stream = b"".join(sent)
        if random.random() < 0.5:
            stream = mutation.spoil(random, stream)
        limits = ProxyLimits(head_timeout_s=2, connect_timeout_s=2, idle_timeout_s=2, max_bytes=100_000)
        proxy = Proxy(
            "fuzz", AllowList([f"good.example:{good}", f"*.wild.example:{good}", f"127.0.0.1:{good}"]), limits, _here
        )
        client = Canned(mutation.pieces(random, stream))
        try:
            async with asyncio.timeout(20):
                await proxy.serve(client)
        finally:
            proxy.close()
        assert not self.trapped, self.trapped
        assert client.written.count(b"HTTP/1.1 403") <= 1
        for data in self.received:
            if data[:1] == b"\x16":
                assert server_name(data) in ("good.example", "a.wild.example"), data
        assert proxy.counts["sent_bytes"] + proxy.counts["received_bytes"] <= limits.max_bytes + 70_000


async def _here(host: str, port: int) -> Sequence[Address]:
    return [ipaddress.ip_address("127.0.0.1")]


@asynccontextmanager
async def proxy_target() -> AsyncIterator[Target]:
    """The proxy with real servers on this machine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            data = await reader.read(1 << 16)
            cases.received.append(data)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def trap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cases.trapped.append(b"connected")
        writer.close()

    servers = [await asyncio.start_server(handler, "127.0.0.1", 0) for handler in (answer, trap)]
    cases = ProxyCases(*(server.sockets[0].getsockname()[1] for server in servers))
    try:
        yield Target(name="proxy", case=cases.case)
    finally:
        for server in servers:
            server.close()
            await server.wait_closed()


TARGETS = [
    Target(name="http-heads", case=heads),
    Target(name="http-bodies", case=bodies),
    Target(name="tls-hellos", case=hellos),
    Target(name="allow-lists", case=allow_lists, weight=0.5),
    Target(name="allow-list-entries", case=entries, weight=0.5),
]
