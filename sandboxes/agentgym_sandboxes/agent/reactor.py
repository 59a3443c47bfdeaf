"""The agent's event loop: descriptors, timers, frames to the host, and children that the zygote forks."""

from __future__ import annotations

import array
import collections
import heapq
import itertools
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import Callable

from . import frames
from .sweep import Sweeper

STDOUT_FD = 1
ZYGOTE_GONE = 70
READY = b"!"  # what a zygote says first

OnEnd = Callable[[dict[str, float]], None]


class Reactor:
    """What operations of the agent are built on. Their handlers must not block.

    uids: more than the calls that run at a time. fork_zygote: starts another one. killable: whether the zygote may be
    killed by what runs here, as root can in a task's container: then its children are lost, not the container.
    """

    def __init__(self, zygote: socket.socket, uids: Sequence[int], fork_zygote: Callable[[], socket.socket]) -> None:
        self.sweeper = Sweeper()
        self.killable = False
        self._fork_zygote = fork_zygote
        self._zygote = zygote
        self._uids: collections.deque[int] = collections.deque(uids)  # in turn, so that a uid rests after use
        self._children: dict[int, OnEnd] = {}
        self._poll = select.poll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()
        self._outgoing: collections.deque[memoryview] = collections.deque()
        os.set_blocking(STDOUT_FD, False)  # the host may be busy writing: neither waits for the other
        self.watch(zygote.fileno(), self._read_zygote)

    def step(self, until_s: float) -> None:
        """Call what is due, then wait for a descriptor, a timer or until_s, a time of the monotonic clock."""
        now_s = time.monotonic()
        while self._timers and self._timers[0][0] <= now_s:
            heapq.heappop(self._timers)[2]()
        soonest_s = min(until_s, self._timers[0][0]) if self._timers else until_s
        for fd, _ in self._poll.poll(max(0.0, (soonest_s - time.monotonic()) * 1000) + 1):
            if fd in self._watched:  # an earlier one of these events may have ended it
                self._watched[fd]()

    def watch(self, fd: int, on_ready: Callable[[], None], events: int = select.POLLIN) -> None:
        """Call on_ready when fd is ready; it must accept being called too often. Replaces an earlier watch."""
        self._watched[fd] = on_ready
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Call it before fd is closed. A descriptor that is not watched is accepted."""
        if self._watched.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call it once, at a time of the monotonic clock. A timer can't be cancelled: `call` checks its need."""
        heapq.heappush(self._timers, (when_s, next(self._serials), call))

    def send(self, header: frames.Header, blobs: Sequence[frames.Blob] = ()) -> None:
        """Send a frame: the answer to the host's frame of that `id`, or an `event` that it did not ask for."""
        self._outgoing.append(memoryview(frames.prefix(header, blobs)))
        self._outgoing.extend(memoryview(blob) for blob in blobs if blob)
        self._write()

    def take_uid(self) -> int:
        """One that no process has."""
        return self._uids.popleft()

    def give_uid(self, uid: int) -> None:
        self._uids.append(uid)

    def spawn(self, order: dict[str, object], fds: list[int], on_end: OnEnd) -> None:
        """Have the zygote fork a child that owns `fds`.

        on_end gets its `pid` first, when the order names a `keeper`; then its `status`, `cpu_s` and
        `memory_kib`, or its `fork_error`.
        """
        key = next(self._serials)
        self._children[key] = on_end
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        if self._zygote.fileno() < 0:
            self._zygote = self._fork_zygote()
            self.watch(self._zygote.fileno(), self._read_zygote)
        try:
            self._zygote.sendmsg([json.dumps({**order, "key": key}).encode()], [rights])
        except OSError:
            self._lose_zygote()
        for fd in fds:
            os.close(fd)

    def _lose_zygote(self) -> None:
        """It was killed. Its children count as killed, too, though one may go on; the next order starts another."""
        if not self.killable:
            os._exit(ZYGOTE_GONE)
        self.unwatch(self._zygote.fileno())
        self._zygote.close()
        children, self._children = self._children, {}
        for on_end in children.values():
            on_end({"status": signal.SIGKILL, "cpu_s": 0.0, "memory_kib": 0})

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

    def _read_zygote(self) -> None:
        try:
            data = self._zygote.recv(8192)
        except OSError:  # killed before it had read an order
            data = b""
        if not data:
            self._lose_zygote()
            return
        if data == READY:
            return  # of another one
        end = json.loads(data)
        on_end = self._children[end["key"]] if "pid" in end else self._children.pop(end["key"])
        on_end(end)
