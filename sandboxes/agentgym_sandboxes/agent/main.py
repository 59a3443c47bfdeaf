"""Starts the agent: the zygote while still root, then the supervisor on standard input and output."""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
from typing import NoReturn

from . import frames
from .landlock import hide
from .preload import MAX_REASON_BYTES
from .processes import OURS
from .reactor import READY, STDOUT_FD, Reactor
from .supervisor import Supervisor
from .zygote import run_zygote

SUPERVISOR_UID = 65000
NOT_PRELOADED = 72
SESSION_CHILD = "agent.session_child"


def main(argv: list[str]) -> NoReturn:
    """argv: the first uid for calls, how many there are; then the modules to preload, of ours `agent.session_child`."""
    first_uid, num_uids = int(argv[0]), int(argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come to PID 1 and must not stay zombies
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ours = fork_zygote(argv[2:])
    # A call's uid could signal a process whose real or saved uid it shares. While we sweep, our effective uid
    # is the call's; the real one is nobody's, the saved one root's, to come back.
    os.setresuid(SUPERVISOR_UID, 0, 0)
    said = ours.recv(MAX_REASON_BYTES)
    if said != READY:
        reason = said.decode("utf-8", "replace") or f"Python ended while it imported {', '.join(argv[2:])}"
        frames.write_all(STDOUT_FD, frames.encode({"id": 0, "error": reason}))
        os._exit(NOT_PRELOADED)
    hello: frames.Header = {"id": 0, "python": ".".join(str(part) for part in sys.version_info[:3])}
    frames.write_all(STDOUT_FD, frames.encode(hello))
    if SESSION_CHILD in argv[2:]:
        from . import session  # noqa: F401  # now, and not when an episode waits for it
    reactor = Reactor(ours, range(first_uid, first_uid + num_uids), functools.partial(fork_zygote, argv[2:]))
    Supervisor(reactor).serve()


def fork_zygote(preloaded: list[str]) -> socket.socket:
    """Start a zygote with root's rights, and no descriptor of ours but one end of a socket; returns the other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        os.setresuid(0, 0, 0)
        hide()
        null = os.open("/dev/null", os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.closerange(3, theirs.fileno())
        os.closerange(theirs.fileno() + 1, 1024)
        run_zygote(theirs, preloaded)
    theirs.close()
    OURS.clear()
    OURS.update((1, pid))
    return ours
