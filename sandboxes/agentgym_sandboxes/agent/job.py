"""One call under way: its uids, its pipes, what came out of them, and how it ended."""

from __future__ import annotations

import os
import time
from typing import Callable, NamedTuple

from .frames import Header
from .limits import ChildLimits


class Hit(NamedTuple):
    """limit: the resource with its unit, as the host's LimitHit has it."""

    limit: str
    used: float
    allowed: float


class Job:
    """One call. `reason` is why the agent ended it early; None when it ended by itself."""

    def __init__(self, number: int, limits: ChildLimits, uids: list[int]) -> None:
        self.number = number
        self.limits = limits
        self.uids = uids
        self.fds: dict[str, int] = {}
        self.output: dict[str, bytearray] = {}
        self.num_bytes: dict[str, int] = {}
        self.live = 0  # children that have not been reported as ended
        self.exits: dict[str, int] = {}  # wait statuses by operation
        self.reason: str | None = None
        self.hit: Hit | None = None  # the limit behind the reason
        self.beside = 0  # calls that may have taken the room that it lacked
        self.ending = False
        self.num_kills = 0  # rounds of them since it is ending
        self.swept = False  # processes were killed
        self.leaked = False  # and they had outlived the call's own
        self.cpu_s = 0.0
        self.memory_kib = 0
        self.began_s = time.monotonic()
        self.deadline_s = self.began_s + limits.wall_s

    def pipe(self, name: str) -> int:
        """A new pipe for what a child says; returns the child's end."""
        read, write = os.pipe2(os.O_CLOEXEC)
        os.fchmod(write, 0o622)  # so that a child can open /dev/stdout: the pipe is another user's
        os.set_blocking(read, False)
        self.fds[name] = read
        self.output[name] = bytearray()
        self.num_bytes[name] = 0
        return write

    def pump(self, name: str) -> bool:
        """Take what a pipe holds; False when there is nothing more for now. Sets `reason` on a flood."""
        fd = self.fds.get(name)
        if fd is None:
            return False
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.close(name)
            return False
        text = name in ("stdout", "stderr")
        kept, most = self.output[name], self.limits.output_bytes if text else self.limits.answer_bytes
        kept += data[: max(0, most - len(kept))]
        self.num_bytes[name] += len(data)
        if self.num_bytes[name] > (self.limits.flood_bytes if text else self.limits.answer_bytes):
            self.reason = self.reason or "output_limit"
            return False
        return True

    def drain(self, forget: Callable[[int], object]) -> None:
        """Take what is left in the pipes and close them. forget: called with each descriptor before."""
        for name, fd in list(self.fds.items()):
            forget(fd)
            while self.pump(name):
                pass
            if name in self.fds:
                self.close(name)

    def close(self, name: str) -> None:
        os.close(self.fds.pop(name))

    def header(self, reason: str | None, hit: Hit | None) -> Header:
        """The header of the answer to the call."""
        header: Header = {
            "id": self.number,
            "reason": reason,
            "exits": self.exits,
            "truncated": any(self.num_bytes[name] > len(kept) for name, kept in self.output.items()),
            "cpu_s": self.cpu_s,
            "memory_mib": self.memory_kib / 1024,
            "wall_s": self.wall_s,
            "names": list(self.output),
        }
        if hit is not None:
            header.update(limit=hit.limit, used=hit.used, allowed=hit.allowed)
        return header

    @property
    def wall_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s
