"""One call and no more: waits with its Python warm, forks the call when its order comes, reports how it ended.

For sandboxes that are used once. As PID 1 of one it can't be killed from inside, and its end is everyone's.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from typing import NoReturn

from .endings import disk_size, full_disk
from .landlock import restrict_writes
from .limits import WORK, ChildLimits, lower, set_rlimits
from .zygote import receive_order, run_child, warm_up

_PR_SET_DUMPABLE = 4


def main(argv: list[str]) -> NoReturn:
    """argv: the descriptor of the control socket."""
    control = socket.socket(fileno=int(argv[0]))
    warm_up()
    gc.freeze()  # a collection in the call has nothing of ours to look through
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_DUMPABLE, 0)  # the call runs under our uid and must not reach into our memory
    control.send(json.dumps({"python": ".".join(str(part) for part in sys.version_info[:3])}).encode())
    _silence_errors()
    order, fds = receive_order(control)
    limits = ChildLimits.of(order["limits"])

    def confine() -> None:
        libc.prctl(_PR_SET_DUMPABLE, 1)  # or it could not open its own /proc/self
        _confine(limits)

    try:
        pid = os.fork()
    except OSError as error:
        control.send(json.dumps({"fork_error": error.errno}).encode())
        os._exit(1)
    if pid == 0:
        run_child(order["op"], fds, confine)
    for fd in fds:
        os.close(fd)
    _wait(control, pid, wake_read)


def _confine(limits: ChildLimits) -> None:
    contained = os.getppid() == 1  # PID 1 is ours in a sandbox alone
    if contained:
        os.setsid()
        _limit_processes(limits.processes)
    os.nice(19)  # a busy call must not starve whoever waits for it
    with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")  # when memory ends, the call goes first, never its keeper
    os.umask(0o077)
    set_rlimits(limits)
    if contained:
        restrict_writes(alone=True)


def _limit_processes(most: int) -> None:
    """Besides the control group: only where the kernel counts a user's processes in each user namespace."""
    major, minor = os.uname().release.split(".")[:2]
    if (int(major), int(minor.split("-")[0])) >= (5, 14):
        most += 1  # we are counted too
        lower(resource.RLIMIT_NPROC, most)


def _wait(control: socket.socket, call: int, wake_read: int) -> NoReturn:
    """Report the call's end, then end all that it started. Reaps every orphan until then."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != wake_read:
                _end()  # the owner is gone
            os.read(wake_read, 4096)
            while True:
                try:
                    pid, status, usage = os.wait4(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if not pid:
                    break
                if pid == call:
                    spent = usage.ru_utime + usage.ru_stime
                    end = {"status": status, "cpu_s": spent, "memory_kib": usage.ru_maxrss, "disk": _disk()}
                    control.send(json.dumps(end).encode())
                    _end()


def _disk() -> object:
    """The limit to report when the call says that there was no room for a file."""
    return (full_disk() or disk_size()) if os.path.ismount(WORK) else None


def _end() -> NoReturn:
    """End our process group; as PID 1, the kernel ends every process of the sandbox with us."""
    if os.getpid() != 1 and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _silence_errors() -> None:
    """Nobody reads standard error from now on: until here it showed why a start failed."""
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
