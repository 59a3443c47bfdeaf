"""Forks a child for every call out of one Python that has its modules imported already; holds no payload."""

from __future__ import annotations

import array
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, Callable, NoReturn

from .judge import judge
from .landlock import restrict_writes
from .limits import ChildLimits, drop_rights, make_home
from .preload import MAX_REASON_BYTES, PreloadFailed, limit_mib, preload, reseed
from .program import run_program
from .reactor import READY
from .serve import NO_MEMORY, serve
from .sharing import leave_when_shared

PREIMPORTED = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "time", "typing",
)  # fmt: skip
MAX_ORDER_BYTES = 8192
KEEP_PYTHON = ("program", "serve", "judge", "repl")  # operations whose children have what was preloaded
_MAX_FDS = 6


def run_zygote(control: socket.socket, preloaded: Sequence[str] = ()) -> NoReturn:
    """Fork on every order; report every child's end. Ends with its supervisor.

    preloaded: modules that calls find imported. Says READY, or why it can't be.
    """
    warm_up()
    try:
        preload(preloaded)
    except PreloadFailed as error:
        control.send(str(error).encode("utf-8", "replace")[:MAX_REASON_BYTES])
        os._exit(1)
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    keys: dict[int, int] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake_read, select.POLLIN)
    gc.collect()
    gc.freeze()  # the collector would write to every object, and so copy every page, in each child
    control.send(READY)
    while True:
        for fd, _ in poll.poll():
            if fd == wake_read:
                os.read(wake_read, 4096)
                _report_ends(control, keys)
            else:
                _take_order(control, keys)


def warm_up() -> None:
    """Import what programs are likely to; make the standard streams take any text."""
    for name in PREIMPORTED:
        __import__(name)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def receive_order(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What to fork, and the descriptors that it owns. Ends the process when the sender is gone."""
    data, ancillary, _, _ = control.recvmsg(MAX_ORDER_BYTES, socket.CMSG_SPACE(4 * _MAX_FDS))
    if not data:
        os._exit(0)
    fds = array.array("i")
    for _, _, packed in ancillary:
        fds.frombytes(packed)
    order = json.loads(data)
    return order, list(fds)


def _take_order(control: socket.socket, keys: dict[int, int]) -> None:
    order, fds = receive_order(control)
    if order["op"] in KEEP_PYTHON:
        order["limits"]["memory_mib"] = limit_mib(order["limits"]["memory_mib"])
    if "keeper" in order:
        from . import session_child  # noqa: F401  # here, once, and not in every child
    try:
        if "keeper" not in order:
            order["folder"] = make_home(order["uid"])  # not the child: its failure would look like the call's
        pid = os.fork()
    except OSError as error:
        control.send(json.dumps({"key": order["key"], "fork_error": error.errno}).encode())
    else:
        if pid == 0:
            limits = ChildLimits.of(order["limits"])
            run_child(order["op"], fds, lambda: _confine(order, limits))
        keys[pid] = order["key"]
        if "keeper" in order:
            control.send(json.dumps({"key": order["key"], "pid": pid}).encode())
    for fd in fds:
        os.close(fd)


def _confine(order: dict[str, Any], limits: ChildLimits) -> None:
    reseed()
    if "keeper" in order:
        from .session_child import become, confine_session

        if "user" in order:
            become(order["user"], order["keeper"])
        else:
            confine_session(order["uid"], order["keeper"], limits)
    else:
        drop_rights(order["uid"], limits, order["folder"])
    if "user" not in order:
        restrict_writes(alone="keeper" not in order)
    if order["op"] == "judge":
        os.environ["TMPDIR"] = order["folder"]
        if not order["alone"]:
            leave_when_shared(order["folder"])


def _report_ends(control: socket.socket, keys: dict[int, int]) -> None:
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid not in keys:
            continue  # a call may make children that are ours, with CLONE_PARENT
        end = {
            "key": keys.pop(pid),
            "status": status,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "memory_kib": usage.ru_maxrss,
        }
        control.send(json.dumps(end).encode())


def run_child(op: str, fds: list[int], confine: Callable[[], None]) -> NoReturn:
    """One call, in its own process. fds: as the supervisor lists them for the operation."""
    exit_code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _close_all_but(fds)
        confine()
        if op in ("repl", "exec", "files"):
            from .session_child import run_session_child

            os._exit(run_session_child(op, fds))
        with open(fds[0], "rb", buffering=0) as file:
            payload = file.readall()
        if op == "serve":
            questions = fds[2] if len(fds) > 2 else None
            exit_code = serve(payload, fds[1], questions) if questions is None or _is_asked(questions) else 0
        elif op == "judge":
            exit_code = judge(payload, fds[1], fds[2])
        else:
            for target, fd in enumerate(fds[2:]):
                os.dup2(fd, target)
                os.close(fd)
            exit_code = run_program(payload, fds[1])
    except BaseException as error:
        if op == "program":
            sys.excepthook(type(error), error, None)
        elif op == "serve" and isinstance(error, MemoryError):
            exit_code = NO_MEMORY
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(exit_code)


def _is_asked(questions: int) -> bool:
    """Wait until the prelude has run: what it opens, no solution can take first. False when it failed."""
    with socket.socket(fileno=os.dup(questions)) as link:
        return bool(link.recv(1, socket.MSG_PEEK))


def _close_all_but(fds: list[int]) -> None:
    """Close what was inherited: a child holds its own descriptors and the standard three."""
    low = 3
    for fd in sorted(fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1024)
