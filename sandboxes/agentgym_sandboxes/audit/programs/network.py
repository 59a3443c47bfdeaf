"""Ways out over a network, and to servers on the host."""

# ruff: noqa: E501

from __future__ import annotations

import asyncio
import textwrap
from functools import partial

from agentgym.sandbox import Limits, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, Outcome, broken, contained, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import described, evidence, refused, settled
from agentgym_sandboxes.audit.programs.prelude import program
from agentgym_sandboxes.audit.trial import Scene, Snippet

LIMITS = Limits(wall_s=6.0, cpu_s=4, memory_mib=256)


def _to_the_host(name: str, tries: str, code: str) -> Scene:
    """The program is refused twice, and the host's servers received nothing."""

    async def act(backend: SandboxBackend, host: Host) -> Judgement:
        before = len(host.received)
        result = await backend.run(program(host.fill(textwrap.dedent(code))), limits=LIMITS)
        judgement = refused(2)(result)
        await host.catch_up()
        if len(host.received) > before:
            return escaped(f"a server on the host was contacted by {host.received[-1]}")
        return judgement

    return Scene(name, tries, act, category=Category.SURFACE, claim="network_off")


async def _neighbours_network(backend: SandboxBackend, host: Host) -> Judgement:
    """A server in one call, a client in another at the same time. No backend promises to keep these apart."""
    server = program("""
import socket, time
sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
sock.bind(("127.0.0.1", 47117))
sock.listen(1)
sock.settimeout(1.2)
say("made", "server")
try:
    sock.accept()
    say("heard", "client")
except TimeoutError:
    pass
""")
    client = program("""
import socket, time
end = time.monotonic() + 0.8
while time.monotonic() < end:
    try:
        socket.create_connection(("127.0.0.1", 47117), timeout=0.3)
        say("reached", "a server in another call")
        break
    except OSError as error:
        last = error
        time.sleep(0.05)
held("loopback", last)
""")
    served, called = await asyncio.gather(backend.run(server, limits=LIMITS), backend.run(client, limits=LIMITS))
    if evidence(called, "reached"):
        return Judgement(Outcome.NOT_CLAIMED, "calls at the same time in one container share its loopback interface")
    early = settled(called)
    if early is not None:
        return early
    if not evidence(served, "made") or evidence(served, "heard"):
        return broken(described(served))
    return contained("no connection")


_program = partial(Snippet, category=Category.SURFACE, claim="network_off", limits=LIMITS)

# fmt: off
SNIPPETS: tuple[Snippet | Scene, ...] = (
    _to_the_host("tcp_to_the_host", "connects to a server of the host, by each of its addresses", """
        import socket
        for address in @ADDRESSES@:
            attempt("TCP " + address, lambda: socket.create_connection((address, @TCP_PORT@), timeout=1))
    """),
    _to_the_host("udp_to_the_host", "sends datagrams to a server of the host, which answers nothing", """
        import socket
        for address in @ADDRESSES@:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                sock.connect((address, @UDP_PORT@))
                sock.send(b"x")
                sock.send(b"x")
                held(address, "sent, to nobody")
            except OSError as error:
                held("UDP " + address, errno.errorcode[error.errno])
    """),
    _program("internet", "looks for a way to the internet and to the cloud's metadata server", refused(4), """
        import socket
        for address in ("1.1.1.1", "8.8.8.8", "169.254.169.254", "100.100.100.200"):
            # connecting a datagram socket sends nothing, but fails without a route
            attempt(address, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect((address, 53)))
        for address in ("2606:4700:4700::1111", "fd00:ec2::254"):
            attempt(address, lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect((address, 53)))
    """),
    _program("names_of_hosts", "queries the name server, the usual channel for exfiltration", refused(1), """
        import re, socket
        servers = ["1.1.1.1"]
        try:
            servers += re.findall(r"(?m)^nameserver\\s+([0-9.]+)", open("/etc/resolv.conf").read())
        except OSError:
            pass
        query = bytes.fromhex("aaaa01000001000000000000076578616d706c6503636f6d0000010001")
        for server in servers:
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            attempt("DNS " + server, lambda: sock.sendto(query, (server, 53)))
    """),
    _program("interfaces", "looks for network interfaces, routes and neighbours", refused(2), """
        for line in open("/proc/net/dev").read().splitlines()[2:]:
            name = line.split(":")[0].strip()
            # tunnels that the kernel makes in every namespace are down and lead nowhere
            usual = name == "lo" or name.rstrip("0123456789") in ("tunl", "gre", "gretap", "erspan", "ip_vti", "ip6_vti", "sit", "ip6tnl", "ip6gre")
            (held if usual else escaped)("interface", name)
        routes = open("/proc/net/route").read().splitlines()[1:]
        (escaped if routes else held)("routes", len(routes))
        neighbours = open("/proc/net/arp").read().splitlines()[1:]
        (escaped if neighbours else held)("neighbours", len(neighbours))
    """),
    _program("abstract_socket_of_the_host", "connects to a socket of the host that has no file", refused(1), """
        import socket
        attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + @ABSTRACT@))
        names = [line.split()[7] for line in open("/proc/net/unix") if "@agentgym-bait" in line]
        if names:
            escaped("sees sockets of the host", names)
    """),
    Scene("loopback_of_a_neighbour", "meets a call that runs at the same time on the loopback interface",
        _neighbours_network, category=Category.SURFACE, claim="network_off"),
)
