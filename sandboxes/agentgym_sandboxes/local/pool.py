"""Boxes that are ready, a bounded number of calls at a time, and a bounded wait for a turn."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

from agentgym.errors import InfraError
from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.local.box import Box

log = logging.getLogger(__name__)

CLOSED = "the sandbox was closed"


class Pool:
    """Spare boxes and slots for calls. Every box serves one call; a spare that was taken is replaced."""

    def __init__(
        self,
        start_box: Callable[[], Awaitable[Box]],
        meter: CallMeter,
        *,
        num_spares: int,
        num_slots: int,
        num_starts: int,
        lease_timeout_s: float,
    ) -> None:
        self._start_box = start_box
        self._meter = meter
        self._num_spares = num_spares
        self._lease_timeout_s = lease_timeout_s
        self._slots = asyncio.Semaphore(num_slots)
        self._starts = asyncio.Semaphore(num_starts)
        self._spares: collections.deque[Box] = collections.deque()
        self._boxes: set[Box] = set()  # all that are not known to be gone
        self._refills: set[asyncio.Task[None]] = set()
        self._num_starting = 0  # of spares
        self._closed = False
        self.loop = asyncio.get_running_loop()
        self.num_waiting = 0
        self.num_busy = 0

    @property
    def num_spares(self) -> int:
        return len(self._spares)

    async def start(self) -> None:
        """Wait for the first box, so that a failure is reported now; the others follow."""
        self._keep(await self._start())
        self._refill()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """A turn, and how long it was waited for. Raises SandboxUnavailable when none comes in time."""
        began_s = time.monotonic()
        self.num_waiting += 1
        try:
            async with asyncio.timeout(self._lease_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            self._meter.queue.add(time.monotonic() - began_s)
            raise SandboxUnavailable(
                f"no slot came free within {self._lease_timeout_s:g} s (lease_timeout_s); more `slots` would help"
            ) from None
        finally:
            self.num_waiting -= 1
        self.num_busy += 1
        try:
            yield time.monotonic() - began_s
        finally:
            self.num_busy -= 1
            self._slots.release()

    async def take(self, count: int) -> list[Box]:
        """Takes so many boxes, warm ones as long as there are. Raises SandboxUnavailable when none can be started."""
        taken: list[Box] = []
        try:
            while len(taken) < count:
                if self._closed:
                    raise SandboxUnavailable(CLOSED)
                if self._spares:
                    box = self._spares.popleft()
                    box.watch(None)
                    if box.alive:
                        taken.append(box)
                    else:
                        await self._end(box)
                else:
                    self._meter.counts["cold_starts_total"] += 1
                    taken.append(await self._start())
            if self._closed:  # while one was started
                raise SandboxUnavailable(CLOSED)
        except BaseException:
            await self.give_back(taken)
            raise
        self._refill()
        return taken

    async def give_back(self, boxes: Sequence[Box]) -> None:
        """End the boxes of a call."""
        await asyncio.gather(*(self._end(box) for box in boxes))

    async def close(self) -> None:
        """End all boxes; calls under way fail."""
        self._closed = True
        refills = list(self._refills)
        for refill in refills:
            refill.cancel()
        await asyncio.gather(*refills, return_exceptions=True)
        for box in self._spares:
            box.watch(None)
        self._spares.clear()
        await asyncio.gather(*(self._end(box) for box in self._boxes))

    async def _end(self, box: Box) -> None:
        """Goes on when its caller is cancelled; then `close` waits for it."""
        await box.end()
        self._boxes.discard(box)

    async def _start(self) -> Box:
        async with self._starts:
            box = await self._start_box()
        self._boxes.add(box)
        self._meter.start.add(box.start_s)
        self._meter.counts["starts_total"] += 1
        return box

    def _keep(self, box: Box) -> None:
        self._spares.append(box)
        box.watch(lambda: self._lose(box))

    def _lose(self, box: Box) -> None:
        """A spare died while it waited."""
        self._meter.counts["lost_spares_total"] += 1
        with contextlib.suppress(ValueError):
            self._spares.remove(box)
        self._spawn(self._replace(box))

    async def _replace(self, box: Box) -> None:
        await self._end(box)
        await asyncio.sleep(1.0)  # what kills every spare must not keep a core busy
        self._refill()

    def _refill(self) -> None:
        for _ in range(self._num_spares - len(self._spares) - self._num_starting):
            if self._closed:
                return
            self._num_starting += 1
            self._spawn(self._add())

    async def _add(self) -> None:
        try:
            self._keep(await self._start())
        except InfraError as error:
            self._meter.counts["start_failures_total"] += 1
            log.warning("no spare sandbox: %s", error)
        finally:
            self._num_starting -= 1

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work)
        self._refills.add(task)
        task.add_done_callback(self._refills.discard)
