"""Pipes of what a session left in the background: read and dropped, so that it does not die of writing to them."""

from __future__ import annotations

import collections
import functools
import os

from .reactor import Reactor

MAX_DRAINED = 64


class Drains:
    """The oldest go when there are many: descriptors are few."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._fds: collections.deque[int] = collections.deque()

    def add(self, fd: int) -> None:
        """Own a pipe's end from now on."""
        self._reactor.watch(fd, functools.partial(self._drop, fd))
        self._fds.append(fd)
        if len(self._fds) > MAX_DRAINED:
            self._remove(self._fds[0])

    def close(self) -> None:
        while self._fds:
            self._remove(self._fds[0])

    def _drop(self, fd: int) -> None:
        try:
            if os.read(fd, 1 << 16):
                return
        except BlockingIOError:
            return
        self._remove(fd)

    def _remove(self, fd: int) -> None:
        self._fds.remove(fd)
        self._reactor.unwatch(fd)
        os.close(fd)
