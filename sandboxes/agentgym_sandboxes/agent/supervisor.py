"""PID 1: takes calls from the host, has them forked, ends them at their limits, sweeps after them, answers."""

from __future__ import annotations

import array
import collections
import functools
import heapq
import importlib
import itertools
import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from typing import Callable, NoReturn

from . import frames
from .calls import Calls
from .sweep import Sweeper

STDIN_FD, STDOUT_FD = 0, 1
IDLE_S = 600.0  # the host pings every few seconds: it is gone
ZYGOTE_GONE, BAD_FRAME = 70, 71
FAMILIES = {"session": ".session", "proxy": ".proxy"}  # imported when an op `family.something` comes first

OnEnd = Callable[[dict[str, float]], None]


class Supervisor:
    """Serves calls until its standard input ends. uids: more than the calls that run at a time.

    A module of `FAMILIES` has a function `register(supervisor)`: it adds its operations to `operations`, by
    their names on the wire, and uses `watch`, `at`, `say` and `spawn`. Handlers must not block.
    """

    def __init__(self, zygote: socket.socket, uids: Sequence[int]) -> None:
        self._zygote = zygote
        self._uids: collections.deque[int] = collections.deque(uids)  # in turn, so that a uid rests after use
        self._children: dict[int, OnEnd] = {}
        self._strangers = dict(FAMILIES)
        self._frames = frames.FrameReader()
        self.sweeper = Sweeper()
        self._poll = select.poll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._heard_s = time.monotonic()
        self._calls = Calls(self)
        self.operations: dict[str, frames.OnFrame] = {"ping": self._pong, "cancel": self._calls.cancel}
        for op in ("program", "grade"):
            self.operations[op] = functools.partial(self._calls.begin, op)
        os.set_blocking(STDOUT_FD, False)  # the host may be busy writing: neither waits for the other
        self.watch(STDIN_FD, self._hear_host)
        self.watch(zygote.fileno(), self._hear_zygote)

    def serve(self) -> NoReturn:
        """The loop. Ends the process, and so the container, when the host or the zygote is gone."""
        while True:
            self._calls.advance()
            now_s = time.monotonic()
            while self._timers and self._timers[0][0] <= now_s:
                heapq.heappop(self._timers)[2]()
            if not self._calls.jobs and now_s - self._heard_s > IDLE_S:
                os._exit(0)
            for fd, _ in self._poll.poll(self._patience_ms()):
                if fd in self._watched:  # an earlier one of these events may have ended it
                    self._watched[fd]()

    def watch(self, fd: int, on_ready: Callable[[], None], events: int = select.POLLIN) -> None:
        """Call on_ready when fd is ready; it must bear being called too often. Replaces an earlier watch."""
        self._watched[fd] = on_ready
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Before fd is closed. It may be that it is not watched."""
        if self._watched.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call it once, at a time of the monotonic clock. What has become needless must see so itself."""
        heapq.heappush(self._timers, (when_s, next(self._serials), call))

    def say(self, header: frames.Header, blobs: Sequence[frames.Blob] = ()) -> None:
        """Send a frame: the answer to the host's frame of that `id`, or an `event` that it did not ask for."""
        self._outgoing.append(memoryview(frames.prefix(header, blobs)))
        self._outgoing.extend(memoryview(blob) for blob in blobs if blob)
        self._write()

    def take_uid(self) -> int:
        """One that no process has."""
        return self._uids.popleft()

    def give_uid(self, uid: int) -> None:
        self._uids.append(uid)

    @property
    def num_unsent(self) -> int:
        """Bytes that the host has not taken yet."""
        return sum(len(piece) for piece in self._outgoing)

    def _write(self) -> None:
        try:
            while self._outgoing:
                piece = self._outgoing[0]
                num_written = os.write(STDOUT_FD, piece)
                if num_written < len(piece):
                    self._outgoing[0] = piece[num_written:]
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            self.watch(STDOUT_FD, self._write, select.POLLOUT)
        else:
            self.unwatch(STDOUT_FD)

    def _patience_ms(self) -> float:
        if self._calls.any_ending:
            return 1  # no event tells when the last process of a uid has vanished
        soonest_s = min([self._heard_s + IDLE_S, *(job.deadline_s for job in self._calls.jobs.values())])
        if self._timers:
            soonest_s = min(soonest_s, self._timers[0][0])
        return max(0.0, (soonest_s - time.monotonic()) * 1000) + 1

    def _hear_host(self) -> None:
        data = os.read(STDIN_FD, 1 << 16)
        if not data:
            os._exit(0)
        self._heard_s = time.monotonic()
        try:
            complete = self._frames.feed(data)
        except frames.FrameError as error:
            print(f"the host sent {error}", file=sys.stderr, flush=True)
            os._exit(BAD_FRAME)
        for frame in complete:
            op = str(frame.header["op"])
            family = op.partition(".")[0]
            if family in self._strangers:
                module = self._strangers.pop(family)
                importlib.import_module(module, __package__).register(self)
            if op in self.operations:
                self.operations[op](frame)
            else:
                self.say({"id": frame.header["id"], "error": f"no operation {op!r}"})

    def _pong(self, frame: frames.Frame) -> None:
        self.say({"id": frame.header["id"], "pong": True})

    def spawn(self, order: dict[str, object], fds: list[int], on_end: OnEnd) -> None:
        """Have the zygote fork a child that owns `fds`.

        on_end gets its `pid` first, when the order names a `keeper`; then its `status`, `cpu_s` and
        `memory_kib`, or its `fork_error`.
        """
        key = next(self._serials)
        self._children[key] = on_end
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self._zygote.sendmsg([json.dumps({**order, "key": key}).encode()], [rights])
        for fd in fds:
            os.close(fd)

    def _hear_zygote(self) -> None:
        data = self._zygote.recv(8192)
        if not data:
            os._exit(ZYGOTE_GONE)
        end = json.loads(data)
        on_end = self._children[end["key"]] if "pid" in end else self._children.pop(end["key"])
        on_end(end)
