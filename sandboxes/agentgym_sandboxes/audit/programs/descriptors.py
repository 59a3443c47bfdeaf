"""Descriptors and other handles of which the kernel has a limited number."""

from __future__ import annotations

import textwrap
from functools import partial

from agentgym.sandbox import Limits
from agentgym_sandboxes.audit.findings import Category
from agentgym_sandboxes.audit.programs.checks import reached, refused
from agentgym_sandboxes.audit.trial import Snippet

LIMITS = Limits(wall_s=12.0, cpu_s=5, memory_mib=256)
MOST_OPEN = 256  # of one process; the sandboxes here allow 64


def _opens(name: str, tries: str, code: str, *, at_least: int = 1) -> Snippet:
    """Opens one kind of handle 500 times in one process."""
    body = f"""
import select, socket
kept = []
def one():
{textwrap.indent(textwrap.dedent(code), "    ")}
try:
    while len(kept) < 500:
        kept.append(one())
except OSError as error:
    why = errno.errorcode[error.errno]
    kept_count = len(kept)
    kept.clear()
    held("handle", why)
    say("reached", "open", kept_count)
else:
    say("reached", "open", len(kept))
"""
    return Snippet(
        name=name,
        category=Category.RESOURCES,
        tries=tries,
        limits=LIMITS,
        check=reached(MOST_OPEN, at_least=at_least),
        code=body,
    )


_program = partial(Snippet, category=Category.RESOURCES, limits=LIMITS)

# fmt: off
SNIPPETS = (
    _opens("open_files", "opens one file 500 times", "return os.open('/dev/null', os.O_RDONLY)"),
    _opens("open_pipes", "500 pipes", "return os.pipe()"),
    _opens("open_polls", "500 epoll instances, each watching the one before", """
        new = select.epoll()
        if kept and len(kept) % 4:
            new.register(kept[-1].fileno())
        return new
    """),
    _opens("open_terminals", "500 pseudo terminals, of which the host has 4096",
        "return os.open('/dev/ptmx', os.O_RDWR)", at_least=0),
    _opens("open_sockets", "500 sockets", "return socket.socket(socket.AF_UNIX)"),
    _program("watches", "500 inotify instances, of which a user of the host has 128", reached(MOST_OPEN // 2 - 2), """
        import ctypes
        libc, count = ctypes.CDLL(None, use_errno=True), 0
        while count < 500 and libc.inotify_init() >= 0:
            count += 1
        os.closerange(20, 600)
        say("reached", "instances", count)
    """),
    _program("descriptors_in_flight",
        "sends descriptors through sockets and closes its own, so that they count nowhere", reached(MOST_OPEN), """
        import array, socket
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        sent, sinks = 0, []
        try:
            while sent < 1000:
                fds = array.array("i", [os.dup(2) for _ in range(20)])
                try:
                    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
                    sent += 20
                except BlockingIOError:
                    sinks.append((ours, theirs))
                    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
                    ours.setblocking(False)
                finally:
                    for fd in fds:
                        os.close(fd)
        except OSError as error:
            say("held", "in flight", errno.errorcode[error.errno])
        say("reached", "in flight", sent)
    """),
    _program("asynchronous_io", "reserves asynchronous I/O requests, of which the whole host has 65536", refused(1),
        claim="seccomp", code="""
        import ctypes
        context = ctypes.c_ulong(0)
        call("io_setup", (206, 0), 64, ctypes.byref(context))
    """),
    _program("raised_limits", "raises its own limits, and those of its parent", refused(5), """
        import resource
        for name in ("NPROC", "NOFILE", "FSIZE", "CPU", "AS", "CORE"):
            kind = getattr(resource, "RLIMIT_" + name)
            _, hard = resource.getrlimit(kind)
            if hard == resource.RLIM_INFINITY:
                escaped(name, "has no limit")
                continue
            try:
                resource.setrlimit(kind, (hard, hard + 1))
                now = resource.getrlimit(kind)[1]
                (escaped if now > hard else held)(name, now)
            except (ValueError, OSError):
                held(name, hard)
        attempt("of its parent", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1)))
    """),
)
