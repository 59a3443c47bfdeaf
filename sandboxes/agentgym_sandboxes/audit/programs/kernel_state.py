"""Kernel state that outlives a process, and kernel work that its limits do not count."""

from __future__ import annotations

from functools import partial

from agentgym.sandbox import Limits, RunStatus, SandboxBackend
from agentgym_sandboxes.audit.findings import Category, Judgement, broken, contained, escaped
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs.checks import described, reached, refused, settled
from agentgym_sandboxes.audit.programs.prelude import program
from agentgym_sandboxes.audit.trial import Scene, Snippet

LIMITS = Limits(wall_s=8.0, cpu_s=4, memory_mib=256)


async def _used_port(backend: SandboxBackend, host: Host) -> Judgement:
    """A closed connection keeps its port for a minute."""
    user = program("""
import socket
listening = socket.create_server(("127.0.0.1", 47117), reuse_port=False)
client = socket.create_connection(("127.0.0.1", 47117))
accepted, _ = listening.accept()
accepted.close()
client.recv(1)
say("made", "connection")
""")
    next_one = """
import socket
server = socket.socket()
server.bind(("127.0.0.1", 47117))
print("bound", len(open("/proc/net/tcp").readlines()) - 1)
"""
    used = await backend.run(user, limits=LIMITS)
    if "made: connection" not in used.stdout:
        return settled(used) or broken(described(used))
    after = await backend.run(next_one, limits=LIMITS)
    if (after.status, after.stdout) != (RunStatus.OK, "bound 0\n"):
        return escaped(f"the next call finds it: {described(after)}")
    return contained("the next call could use it")


_program = partial(Snippet, category=Category.RESOURCES, claim="seccomp", limits=LIMITS)

# fmt: off
SNIPPETS: tuple[Snippet | Scene, ...] = (
    Scene("used_port", "closes a connection whose port is then unusable for a minute", _used_port,
        category=Category.STATE),
    _program("waiting_connections",
        "connects to itself as often as it can and accepts nothing, which no limit of memory counts",
        reached(at_most=100, at_least=2), claim="per_call_uid", code="""
        import socket
        listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
        made = 0
        try:
            while made < 2000:
                client = socket.socket()
                client.settimeout(0.3)
                client.connect(listening.getsockname())
                client.close()
                made += 1
        except TimeoutError:
            pass
        say("reached", "connections", made)
    """),
    _program("flow_labels", "leaves labels of IPv6 flows, which hold any address for a minute, for all to read",
        refused(1), category=Category.STATE, code="""
        import socket, struct
        sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        label = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("!I", 0x12345)
        label += struct.pack("=BBHHHI", 0, 255, 1, 60, 60, 0)
        attempt("label", lambda: sock.setsockopt(41, 32, label))
    """),
    _program("socket_programs",
        "loads programs into sockets: machine code in the kernel, which no limit of memory counts", refused(4), code="""
        import socket
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        for option in (26, 50, 51, 52):
            call("option %d" % option, (54, 208), sock.fileno(), 1, option, b"", 0)
    """),
    _program("upper_halves", "passes 64-bit arguments whose upper halves the filter sees and the kernel ignores",
        refused(6), category=Category.SURFACE, code="""
        import socket
        above = 1 << 32
        one = b"\\x01\\x00\\x00\\x00"
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for level, option in ((1, 7 | above), (1 | above, 7), (1, 26 | above), (41 | above, 32), (41, 32 | above)):
            call("option %d of %d" % (option, level), (54, 208), sock.fileno(), level, option, one, 4)
        call("socket", (41, 198), 16 | above, 3, 0)
    """),
    _program("odd_protocols",
        "sockets of allowed families with other protocols: ICMP, SCTP, UDP-Lite, L2TP, SMC, multipath TCP",
        refused(12), category=Category.SURFACE, code="""
        for family in (2, 10):
            for kind, protocol in ((1, 132), (2, 136), (2, 115), (1, 256), (1, 262), (2, 1 if family == 2 else 58)):
                call("%d %d" % (family, protocol), (41, 198), family, kind, protocol)
    """),
    _program("wait_for_disks", "flushes all disks of the host, and cannot be killed until they are written",
        refused(6), code="""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        for name, arguments in (("sync", ()), ("syncfs", (9999,)), ("fsync", (9999,)), ("fdatasync", (9999,)),
                                ("sync_file_range", (9999, 0, 0, 2)), ("msync", (1, 4096, 4))):
            if getattr(libc, name)(*arguments) == 0 and name != "sync":
                held(name, "done, to no effect")
            elif name == "sync":
                held(name, "has no answer")
            else:
                escaped(name, errno.errorcode[ctypes.get_errno()] + " of the kernel")
    """),
    _program("huge_pages", "takes huge pages from the host's pool, which no limit counts", refused(2), code="""
        call("mmap", (9, 222), 0, 0, 3, 0x40022, -1, 0, held_by=("ENOMEM",))
        call("memfd_create", (319, 279), 0, 4, held_by=("ENOMEM",))
    """),
)
