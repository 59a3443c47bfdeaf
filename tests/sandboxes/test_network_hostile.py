"""What a hostile client, or the owner of an allowed name, can do to the proxy: cost time, pass for another."""

from __future__ import annotations

import asyncio
import collections
import fcntl
import ipaddress
import resource
import select
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

import pytest
from fuzz.network_targets import Canned
from websites import client_hello

from agentgym.errors import UserError
from agentgym_sandboxes.agent.frames import Blob, Frame, Header
from agentgym_sandboxes.agent.proxy import Relay
from agentgym_sandboxes.docker.outbound import WINDOW_BYTES, OutboundStream
from agentgym_sandboxes.docker.session_network import SessionNetworks
from agentgym_sandboxes.network.allow_list import AllowList
from agentgym_sandboxes.network.client_hello import NotTls, server_name
from agentgym_sandboxes.network.hosts import Address
from agentgym_sandboxes.network.limits import ProxyLimits
from agentgym_sandboxes.network.proxy import Proxy
from agentgym_sandboxes.network.request import BadRequest, ClientRequest


async def test_a_long_name_in_other_letters_costs_no_time() -> None:
    """Converted to ASCII before its length is checked, each would take 0.1 s of the event loop."""
    name = ("üöä" * 17 + ".") * 570
    head = b"GET http://a/ HTTP/1.1\r\nHost: " + name.encode("latin-1") + b"\r\n\r\n"
    began_s = time.process_time()
    for _ in range(20):
        with pytest.raises(BadRequest, match="not a host name"):
            await ClientRequest(Canned([head])).read_head()
    assert time.process_time() - began_s < 0.5


@pytest.mark.parametrize("entry", ["straße.example", "*.STRAẞE.example", "βόλος.example", "a\u200db.example"])
def test_an_entry_that_two_standards_read_as_different_hosts_is_refused(entry: str) -> None:
    with pytest.raises(UserError, match="xn-- form"):
        AllowList([entry])


@pytest.mark.parametrize("kind", [0xFE0D, 0xFE08, 0xFE09, 0xFFCE])
def test_a_hello_that_hides_its_name_is_refused_in_every_version_of_that(kind: int) -> None:
    with pytest.raises(NotTls, match="encrypted"):
        server_name(client_hello("a.example", extra=struct.pack(">HHx", kind, 1)))


class Addresses(Sequence[Address]):
    """As many addresses as whoever owns a name likes. num_seen: how many were looked at."""

    def __init__(self, num: int) -> None:
        self._num = num
        self.num_seen = 0

    def __len__(self) -> int:
        return self._num

    def __getitem__(self, index: int | slice) -> Address | Sequence[Address]:  # type: ignore[override]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._num))]  # type: ignore[misc]
        if not 0 <= index < self._num:
            raise IndexError
        self.num_seen += 1
        return ipaddress.ip_address("10.0.0.1")


async def test_a_name_with_thousands_of_addresses_costs_no_time() -> None:
    found = Addresses(5000)

    async def resolve(host: str, port: int) -> Sequence[Address]:
        return found

    proxy = Proxy("test", AllowList(["a.example"]), ProxyLimits(), resolve)
    client = Canned([b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n"])
    await proxy.serve(client)
    proxy.close()
    assert client.written.startswith(b"HTTP/1.1 403 ") and b"leads to 10.0.0.1" in client.written
    assert found.num_seen <= 33


async def test_an_address_that_does_not_answer_leaves_time_for_the_next() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async def resolve(host: str, port: int) -> Sequence[Address]:
        return [ipaddress.ip_address("127.0.0.2"), ipaddress.ip_address("127.0.0.1")]

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.create_server(("127.0.0.2", port), backlog=0), socket.create_connection(("127.0.0.2", port)):
        # its queue is full: the kernel drops who comes
        allowed = AllowList([f"a.example:{port}", f"127.0.0.1:{port}", f"127.0.0.2:{port}"])
        request = f"GET http://a.example:{port}/ HTTP/1.1\r\nHost: a.example:{port}\r\n\r\n".encode()
        async with server:
            for timeout_s in (1.0, 10.0, 60.0):  # half of it is more than this machine stands still
                proxy = Proxy("test", allowed, ProxyLimits(connect_timeout_s=timeout_s), resolve)
                client = Canned([request])
                await proxy.serve(client)
                proxy.close()
                if not client.written.startswith(b"HTTP/1.1 504 "):
                    break
    assert client.written.startswith(b"HTTP/1.1 204 "), client.written


class Supervisor:
    """The agent's, driven by the test."""

    def __init__(self) -> None:
        self.watched: dict[int, Callable[[], None]] = {}
        self.timers: list[Callable[[], None]] = []
        self.sent: list[Header] = []

    def watch(self, fd: int, on_ready: Callable[[], None], events: int = 0) -> None:
        self.watched[fd] = on_ready

    def unwatch(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def call_at(self, when_s: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def send(self, header: Header, blobs: Sequence[Blob] = ()) -> None:
        self.sent.append(header)


@contextmanager
def listening_agent() -> Iterator[tuple[Supervisor, int]]:
    """A supervisor whose relay listens, and the port."""
    supervisor = Supervisor()
    relay = Relay(supervisor, "a name")  # type: ignore[arg-type]
    relay.listen(Frame({"id": 1, "window": 1 << 18, "connections": 8}, []))
    assert relay._socket is not None
    with relay._socket:
        yield supervisor, relay._socket.getsockname()[1]


def until_readable(fd: int, size: int = 0) -> None:
    """Wait for an event of a socket, or until so many bytes are there to be read: the kernel may take a moment."""
    assert select.select([fd], [], [], 60)[0]
    deadline_s = time.monotonic() + 60
    while size and int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder) < size:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_clients_that_break_off_at_once_are_taken_no_faster_than_others() -> None:
    """Each costs the host two frames and a task."""
    with listening_agent() as (supervisor, port):
        break_off_twice(supervisor, port)


def break_off_twice(supervisor: Supervisor, port: int) -> None:
    [(listening, accept)] = supervisor.watched.items()
    for _ in range(2):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
    until_readable(listening)
    accept()
    assert [header.get("what") for header in supervisor.sent[1:]] == ["open"]
    [(number, ready)] = supervisor.watched.items()
    assert number != listening
    until_readable(number)
    ready()
    assert [header.get("what") for header in supervisor.sent[1:]] == ["open", "close"]
    assert supervisor.watched == {}
    [resume] = supervisor.timers
    resume()
    assert list(supervisor.watched) == [listening]


@pytest.mark.parametrize(("size", "waits"), [(1, True), (12_000, True), (40_000, False)])
def test_pieces_that_cost_the_host_more_than_they_carry_wait_for_more(size: int, waits: bool) -> None:
    with listening_agent() as (supervisor, port), socket.create_connection(("127.0.0.1", port)) as client:
        [(listening, accept)] = supervisor.watched.items()
        until_readable(listening)
        accept()
        client.sendall(bytes(size))
        [(number, ready)] = supervisor.watched.items()
        until_readable(number, size)
        ready()
        assert (number in supervisor.watched) != waits
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        for resume in supervisor.timers[1:]:  # the first is of accepting
            resume()
        until_readable(number)
        supervisor.watched[number]()
        assert supervisor.sent[-1]["what"] == "close"


class Carrier:
    """A container that records what it is sent."""

    name = "carrier"

    def __init__(self) -> None:
        self.written: list[str] = []
        self.asked: list[Header] = []

    async def ask(self, op: str, header: Header, blobs: Sequence[bytes], timeout_s: float) -> Frame:
        self.asked.append(header)
        return Frame({"port": 5}, [])

    def on_event(self, kind: str, handler: Callable[[Frame], None]) -> None: ...

    def notify(self, op: str, header: Header, blobs: Sequence[bytes] = ()) -> None:
        self.written.append(op)


async def test_an_agent_that_ignores_the_window_ends_the_connection_for_readers_and_writers() -> None:
    stream = OutboundStream(Carrier(), 1, "a name")  # type: ignore[arg-type]
    reading = asyncio.create_task(stream.read())
    writing = asyncio.create_task(stream.write(bytes(2 * WINDOW_BYTES)))
    await asyncio.sleep(0)
    stream.receive(bytes(WINDOW_BYTES + 1))
    async with asyncio.timeout(60):
        results = await asyncio.gather(reading, writing, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionResetError] * 2


@pytest.mark.parametrize(
    ("descriptors", "max_sessions", "allowed"), [(1024, 16, 16), (1024, 1, 32), (4000, 16, 32), (1024, 200, 4)]
)
async def test_all_sessions_together_leave_descriptors_to_the_rest_of_the_process(
    descriptors: int, max_sessions: int, allowed: int
) -> None:
    """A process without any left cannot reach its containers: a session must not be able to cause that."""
    carrier = Carrier()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        networks = SessionNetworks(1 << 20, collections.Counter(), max_sessions)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    async with AsyncExitStack() as stack:
        await networks.open(carrier, ["a.example"], stack)  # type: ignore[arg-type]
    assert carrier.asked == [{"window": WINDOW_BYTES, "connections": allowed}]


async def test_small_pieces_are_kept_as_one() -> None:
    """A window of single bytes would take a hundred times its size."""
    stream = OutboundStream(Carrier(), 1, "a name")  # type: ignore[arg-type]
    for _ in range(1000):
        stream.receive(b"x")
    assert await stream.read() == b"x" * 1000
