"""Simulated devices, and work on them that slows down when others work there too."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

DONE = 1e-9  # of rounding


class Device:
    """A GPU, or the cores of a host: at most `capacity` pieces of work run at full speed, more share it evenly."""

    def __init__(self, name: str, capacity: float = 1.0) -> None:
        self.name = name
        self.capacity = capacity
        self.members: set[Work] = set()
        self.speed = 1.0  # of each piece of work
        self.busy_s = 0.0  # seconds of one unit of capacity
        self._since = 0.0

    def count(self, now: float) -> None:
        """Add what was worked since the last change."""
        self.busy_s += (now - self._since) * min(self.capacity, len(self.members))
        self._since = now

    def change(self, work: Work) -> None:
        """It works here from now on, or no longer."""
        (self.members.add if work.pieces else self.members.discard)(work)
        self.speed = min(1.0, self.capacity / max(1, len(self.members)))


class Work:
    """Pieces of work of one process that advance together; each ends when the process has come to its target.

    rate: how fast the process advances by its number of pieces, in units a second at full speed. owed_s: seconds that
    pass before it advances again.
    """

    def __init__(self, devices: list[Device], rate: Callable[[int], float] = lambda pieces: 1.0) -> None:
        self.devices = devices
        self.rate = rate
        self.position = 0.0
        self.owed_s = 0.0
        self.busy_s = 0.0  # in which it had pieces of its own, whoever else was on its devices
        self.pieces_s = 0.0  # summed over pieces
        self.pieces: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = self._loop.time()

    async def do(self, units: float, owed_s: float = 0.0) -> None:
        """Returns when that many units were done, beside the other pieces. owed_s: holds all of them up."""
        done: asyncio.Future[None] = self._loop.create_future()
        with _Changed(self):
            self.owed_s += owed_s
            heapq.heappush(self.pieces, (self.position + units, next(self._numbers), done))
        await done

    def hold_up(self, seconds: float) -> None:
        with _Changed(self):
            self.owed_s += seconds

    def advance(self) -> None:
        """Advances to the present."""
        now = self._loop.time()
        passed = now - self._at
        worked = passed * self.speed
        self._at = now
        self.busy_s += passed if self.pieces else 0.0
        self.pieces_s += passed * len(self.pieces)
        paid = min(worked, self.owed_s)
        self.owed_s -= paid
        if self.pieces:
            self.position += (worked - paid) * self.rate(len(self.pieces))

    @property
    def speed(self) -> float:
        return min([device.speed for device in self.devices])

    def rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.pieces:
            left = max(0.0, self.pieces[0][0] - self.position) / self.rate(len(self.pieces))
            self._timer = self._loop.call_later((left + self.owed_s) / self.speed, self._finish)

    def _finish(self) -> None:
        with _Changed(self):
            at = max(self.position, self.pieces[0][0])
            self.position = at
            while self.pieces and self.pieces[0][0] <= at + DONE * max(1.0, at):
                self._end(heapq.heappop(self.pieces)[2])

    def _end(self, done: asyncio.Future[None]) -> None:
        if not done.done():
            done.set_result(None)


class _Changed:
    """Around a change of one process's work: whoever shares a device with it is brought up to date and goes on."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def __enter__(self) -> None:
        work = self.work
        work.advance()
        self.was_busy = bool(work.pieces)

    def __exit__(self, *_: object) -> None:
        work = self.work
        if self.was_busy != bool(work.pieces):
            now = work._loop.time()
            others = {member for device in work.devices for member in device.members} - {work}
            for member in others:
                member.advance()
            for device in work.devices:
                device.count(now)
                device.change(work)
            for member in others:
                member.rearm()
        work.rearm()
