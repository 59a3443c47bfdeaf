"""PID 1: reads the host's frames, calls the operation that each names, and ends when the host is gone."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from typing import NoReturn

from . import frames
from .calls import Calls
from .reactor import Reactor

STDIN_FD = 0
IDLE_S = 600.0  # the host pings every few seconds: it is gone
BAD_FRAME = 71
FAMILIES = {"session": ".session", "proxy": ".proxy", "forward": ".forward", "talk": ".talk"}
"""Imported when an op `family.something` comes first."""


class Supervisor:
    """Serves calls until its standard input ends.

    A module of `FAMILIES` has a function `register(reactor)`, which returns its operations by their names on the
    wire.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._unregistered = dict(FAMILIES)
        self._frames = frames.FrameReader()
        self._received_s = time.monotonic()
        self._calls = Calls(reactor)
        self._operations: dict[str, frames.OnFrame] = {"ping": self._pong, "cancel": self._calls.cancel}
        for op in ("program", "grade"):
            self._operations[op] = functools.partial(self._calls.begin, op)
        reactor.watch(STDIN_FD, self._read_host)

    def serve(self) -> NoReturn:
        """The loop. Ends the process, and so the container, when the host or the zygote is gone."""
        while True:
            self._calls.advance()
            idle_at_s = self._received_s + IDLE_S
            if not self._calls.jobs and time.monotonic() > idle_at_s:
                os._exit(0)
            self._reactor.step(min(idle_at_s, self._calls.next_s))

    def _read_host(self) -> None:
        data = os.read(STDIN_FD, 1 << 16)
        if not data:
            os._exit(0)
        self._received_s = time.monotonic()
        try:
            complete = self._frames.feed(data)
        except frames.FrameError as error:
            print(f"the host sent {error}", file=sys.stderr, flush=True)
            os._exit(BAD_FRAME)
        for frame in complete:
            op = str(frame.header["op"])
            family = op.partition(".")[0]
            if family in self._unregistered:
                module = importlib.import_module(self._unregistered.pop(family), __package__)
                self._operations.update(module.register(self._reactor))
            if op in self._operations:
                self._operations[op](frame)
            else:
                self._reactor.send({"id": frame.header["id"], "error": f"no operation {op!r}"})

    def _pong(self, frame: frames.Frame) -> None:
        self._reactor.send({"id": frame.header["id"], "pong": True})
