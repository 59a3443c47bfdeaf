"""The child of `agentgym.killable`: frames on a socket, and a loop that calls one function within its limits.

A frame is four bytes of length (big endian) and a body.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any, Final

from agentgym.errors import UserError
from agentgym.import_path import import_object
from agentgym.types import Json

LENGTH: Final = struct.Struct(">I")
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def send_frame(channel: socket.socket, body: bytes) -> None:
    channel.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(channel: socket.socket, deadline: float | None = None) -> bytes:
    """deadline: of time.monotonic(). Raises EOFError when the other side closed, TimeoutError."""
    (size,) = LENGTH.unpack(_receive_exactly(channel, LENGTH.size, deadline))
    return _receive_exactly(channel, size, deadline)


def _receive_exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes:
    parts = []
    while size:
        if deadline is not None:
            channel.settimeout(max(1e-3, deadline - time.monotonic()))
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("the other side closed the channel")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def die_with_parent(parent_pid: int) -> None:
    """Work that hangs would outlive a killed parent, because it never sees the closed channel."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)


def main(fd: int, parent_pid: int) -> None:
    """Serve on the inherited socket `fd` as long as the parent lives."""
    die_with_parent(parent_pid)
    os.dup2(2, 1)  # what the function prints goes where errors go
    with socket.socket(fileno=fd) as channel, contextlib.suppress(EOFError, ConnectionError):
        setup = json.loads(receive_frame(channel))
        try:
            function: Any = import_object(setup["function"], "a function", callable, local=True)
        except UserError as error:
            send_frame(channel, json.dumps({"kind": "import", "text": str(error)}).encode())
            return
        _limit_memory(setup["memory_mib"] << 20)
        send_frame(channel, b"{}")
        while True:
            argument = json.loads(receive_frame(channel))
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel ends the process, also one that is inside C code
            signal.setitimer(signal.ITIMER_PROF, setup["cpu_s"])
            body = _answer(function, argument)
            signal.setitimer(signal.ITIMER_PROF, 0)
            send_frame(channel, body)


def _limit_memory(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def _answer(function: Any, argument: Json) -> bytes:
    try:
        return json.dumps({"value": function(argument)}).encode()
    except (Exception, SystemExit) as error:  # plugin code: anything may come
        return json.dumps({"kind": type(error).__name__, "text": f"{error!s:.500}"}).encode()
