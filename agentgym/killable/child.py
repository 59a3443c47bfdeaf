"""The child's side: frames on a socket, and a loop that hands each request to one handler, within a limit of memory.

A frame is four bytes of length (big endian) and a body. The first frame to the child is its setup, in JSON; it answers
`{}`, or an `error`. What requests and answers are is the handler's matter. This file runs in other Pythons, too.
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
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from agentgym.errors import UserError
from agentgym.import_path import import_object
from agentgym.types import Json

LENGTH: Final = struct.Struct(">I")
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

Handler: TypeAlias = Callable[[socket.socket, bytes], None]
"""Answers one request, with any number of frames in both directions."""


def send_frame(channel: socket.socket, body: bytes) -> None:
    channel.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(channel: socket.socket) -> bytes:
    """Raises EOFError when the other side closed."""
    (size,) = LENGTH.unpack(_receive_exactly(channel, LENGTH.size))
    return _receive_exactly(channel, size)


def _receive_exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            raise EOFError("the other side closed the channel")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def main(fd: str, parent_pid: str, handler: str) -> None:
    """Serve on the inherited socket `fd` as long as the parent lives.

    handler: import path of a function from the setup's `given` to a `Handler`. It may raise UserError.
    """
    die_with_parent(int(parent_pid))
    os.dup2(2, 1)  # what the work prints goes where errors go
    with socket.socket(fileno=int(fd)) as channel, contextlib.suppress(EOFError, ConnectionError):
        _serve(channel, handler)
    os._exit(0)  # threads that the work left would keep the process


def _serve(channel: socket.socket, handler: str) -> None:
    setup = json.loads(receive_frame(channel))
    try:
        make: Any = import_object(handler)
        handle: Handler = make(setup["given"])
    except UserError as error:
        send_frame(channel, json.dumps({"error": str(error)}).encode())
        return
    if setup["memory_mib"]:
        _limit_memory(setup["memory_mib"] << 20)
    send_frame(channel, b"{}")
    while True:
        handle(channel, receive_frame(channel))


def die_with_parent(parent_pid: int) -> None:
    """Work that hangs would outlive a killed parent, because it never sees the closed channel."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(0)


def _limit_memory(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(ValueError, OSError):  # a system without this limit
        resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


def calls(given: Mapping[str, Any]) -> Handler:
    """Serves `KillableCalls`: one function from JSON to JSON, each call within its CPU time."""
    function: Any = import_object(given["function"], "a function", callable, local=True)

    def handle(channel: socket.socket, body: bytes) -> None:
        argument = json.loads(body)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel ends the process, also one that is inside C code
        signal.setitimer(signal.ITIMER_PROF, given["cpu_s"])
        answer = _answer(function, argument)
        signal.setitimer(signal.ITIMER_PROF, 0)
        send_frame(channel, answer)

    return handle


def _answer(function: Any, argument: Json) -> bytes:
    try:
        return json.dumps({"value": function(argument)}).encode()
    except (Exception, SystemExit) as error:  # plugin code: anything may come
        return json.dumps({"kind": type(error).__name__, "text": f"{error!s:.500}"}).encode()
