"""A pool of warm containers: bounded slots, waiting in turn, spares, and replacements in the background."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, RunStatus, SandboxDirty, SandboxLost, SandboxUnavailable
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.upkeep import KeptPool, StartContainer
from agentgym_sandboxes.host.answers import Crowded, NotAlone
from agentgym_sandboxes.host.backend import NOT_STARTED, Answer, read_answer
from agentgym_sandboxes.host.meter import CallMeter

log = logging.getLogger(__name__)

RETRY_START_S = 0.5
MAX_CROWDED = 3  # of one call whose neighbours took its room; then it gets a container alone
FIRST_CROWDED_S = 0.1
MAX_ENGINE_LOSSES = 5  # of one call: containers that went down with their engines


WentWithEngine: TypeAlias = Callable[[str], Awaitable[bool]]
"""Whether a lost container, by its name, went down with its engine."""


async def _by_itself(name: str) -> bool:
    return False


@dataclass(slots=True, eq=False)
class _Waiter:
    future: asyncio.Future[Container]
    avoid: Container | None
    is_suspect: bool
    num_slots: int


class Pool(KeptPool):
    """`size` x `slots` calls at a time; more wait in turn, at most `lease_timeout_s`.

    A worn container serves until a spare takes its place, so that there are never fewer.
    """

    def __init__(
        self,
        config: DockerConfig,
        start_container: StartContainer,
        size: int,
        meter: CallMeter,
        went_with_engine: WentWithEngine = _by_itself,
    ) -> None:
        super().__init__(config, start_container, meter, "container", (RETRY_START_S,))
        self._size = size
        self._went_with_engine = went_with_engine
        tenth = max(1, -(-size // 10))
        self._num_spares = tenth if config.spares is None else config.spares
        self._num_for_worn = max(self._num_spares, tenth)
        self._live: list[Container] = []
        self._spare: list[Container] = []
        self._waiting: collections.deque[_Waiter] = collections.deque()
        self._with_suspect: set[Container] = set()

    async def start(self) -> None:
        """Return when the first container is ready; the others follow in the background.

        A start that fails is made again, as those of the others; one that a person has to see to is not.
        """
        for num_left in reversed(range(self._config.engine_failures)):
            try:
                container = await self._start_container(self._on_change)
                break
            except InfraError as error:
                if isinstance(error, SandboxUnavailable) or not num_left:
                    raise
                log.warning("a container did not start: %s", error)
            await asyncio.sleep(RETRY_START_S)
        if self._closed:  # meanwhile
            await self._remove(container)
            raise SandboxUnavailable(self.CLOSED)
        self._live.append(container)
        self._begin()

    async def call(
        self, op: str, blobs: Sequence[bytes], limits: Limits, answer_of: Callable[[Frame], Answer]
    ) -> Answer:
        """Make one call; once more on another container when the first is lost or dirty.

        A container that went down with its engine says nothing about the call, which then waits for another.
        """
        with self._meter.counting_failures():
            return await self._call(op, blobs, limits, answer_of)

    async def _call(
        self, op: str, blobs: Sequence[bytes], limits: Limits, answer_of: Callable[[Frame], Answer]
    ) -> Answer:
        queue_s, num_failed, num_engine_losses, num_crowded = 0.0, 0, 0, 0
        container: Container | None = None
        while True:
            began_s = time.monotonic()
            is_suspect = num_failed > 0
            num_slots = self._config.slots if num_crowded == MAX_CROWDED else 1
            container = await self._lease(avoid=container, is_suspect=is_suspect, num_slots=num_slots)
            leased_s = time.monotonic()
            queue_s += leased_s - began_s
            try:
                frame = await self._call_in(container, op, blobs, limits, is_suspect=is_suspect, num_slots=num_slots)
            except (SandboxLost, SandboxDirty) as error:
                if isinstance(error, NotAlone) and num_slots < self._config.slots:
                    num_crowded = MAX_CROWDED
                    continue
                if isinstance(error, SandboxDirty):
                    self._meter.counts[counts.LEAKS] += 1
                if isinstance(error, Crowded) and num_crowded < MAX_CROWDED:
                    num_crowded += 1
                    await asyncio.sleep(FIRST_CROWDED_S * 2**num_crowded)  # its neighbours end some time
                elif num_engine_losses < MAX_ENGINE_LOSSES and await self._went_with_engine(container.name):
                    num_engine_losses += 1
                elif num_failed == 1:
                    raise
                else:
                    num_failed += 1
                log.info("%s; making the call again on another container", error)
                self._meter.counts[counts.RETRIES] += 1
                continue
            answer = await read_answer(frame, answer_of)
            self._count(frame, answer.status)
            self._meter.answered(answer.status, queue_s=queue_s, wall_s=time.monotonic() - leased_s)
            return answer

    async def _call_in(
        self, container: Container, op: str, blobs: Sequence[bytes], limits: Limits, *, is_suspect: bool, num_slots: int
    ) -> Frame:
        try:
            return await container.call(op, blobs, limits, alone=num_slots == self._config.slots)
        finally:
            container.reserved -= num_slots - 1  # the container gives back the one that it knows of
            if is_suspect:
                self._with_suspect.discard(container)
            if is_suspect or num_slots > 1:
                self._on_change()

    def gauges(self) -> dict[str, float]:
        """What is true now, by the names in `counts`."""
        serving = [c for c in self._live if c.lost is None]
        return {
            counts.SLOTS_USED: sum(c.reserved for c in serving),
            counts.SLOTS: len(serving) * self._config.slots,
            counts.CALLS_WAITING: sum(1 for waiter in self._waiting if not waiter.future.done()),
            counts.CONTAINERS_LIVE: len(serving),
            counts.CONTAINERS_SPARE: sum(1 for c in self._spare if c.lost is None),
        }

    def _count(self, frame: Frame, status: RunStatus) -> None:
        if status == RunStatus.OOM:
            self._meter.counts[counts.OOM_KILLS] += 1
        if frame.header.get("leaked"):
            self._meter.counts[counts.LEAKS] += 1

    async def _lease(self, *, avoid: Container | None, is_suspect: bool, num_slots: int = 1) -> Container:
        """A container with so many slots reserved for the caller. Raises SandboxUnavailable after the deadline.

        avoid: only when there is no other. is_suspect: of a call that lost a container, as all that ran beside it
        did; no two such calls share one again, so that the one that did it takes no other along twice.
        """
        if self._keeper is None and not self._closed:
            raise SandboxUnavailable(NOT_STARTED)
        self._check_open()
        began_s = time.monotonic()
        future: asyncio.Future[Container] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiter(future, avoid, is_suspect, num_slots))
        self._on_change()
        try:
            async with asyncio.timeout(self._config.lease_timeout_s):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().reserved -= num_slots  # it came too late for its caller
                if is_suspect:
                    self._with_suspect.discard(future.result())
            self._on_change()  # it may have kept those after it waiting
            if isinstance(error, asyncio.CancelledError):  # a caller out of time then knows what it waited for
                raise asyncio.CancelledError from self._no_slot(time.monotonic() - began_s)
            self._meter.queue.add(self._config.lease_timeout_s)
            raise self._no_slot(self._config.lease_timeout_s) from None

    def _no_slot(self, waited_s: float) -> SandboxUnavailable:
        gauges = self.gauges()
        text = (
            f"no sandbox slot came free within {waited_s:.3g} s: "
            f"{gauges[counts.CONTAINERS_LIVE]} of {self._size} containers are up, each serves "
            f"{self._config.slots} calls at a time."
        )
        if self._start_error is None:
            advice = " Set sandbox.options.pool_size or slots higher, or run fewer episodes at a time."
            return SandboxUnavailable(text + advice)
        return self._trouble(f"{text} No more could be started:")

    def _serve_waiting(self) -> None:
        """Give free slots to those who wait, in turn, from the container that is least busy.

        One that needs a container alone keeps one from those after it, so that it comes free.
        """
        kept: set[Container] = set()
        for waiter in list(self._waiting):
            if waiter.future.done():
                self._waiting.remove(waiter)
                continue
            most = self._config.slots - waiter.num_slots
            serving = [c for c in self._live if c.lost is None and c not in kept]
            free = [c for c in serving if c.reserved <= most]
            if not free and waiter.num_slots > 1 and serving:
                kept.add(min(serving, key=lambda c: c.reserved))
                continue
            if not free:
                return
            if waiter.is_suspect:
                free = [c for c in free if c not in self._with_suspect]
                if not free:
                    continue
            container = min(free, key=lambda c: (c is waiter.avoid, c.worn != "", c.reserved))
            container.reserved += waiter.num_slots
            if waiter.is_suspect:
                self._with_suspect.add(container)
            self._waiting.remove(waiter)
            waiter.future.set_result(container)

    def _settle(self) -> None:
        """Take out what was lost; fill up from the spares, which also take the places of the worn; serve who waits."""
        for container in [c for c in self._spare if c.lost is not None]:
            self._spare.remove(container)
            self._retire(container, container.cause)
        for container in [c for c in self._live if c.lost is not None]:
            self._live.remove(container)
            self._retire(container, container.cause)
        while self._spare and len(self._live) < self._size:
            self._live.append(self._spare.pop(0))
        for container in [c for c in self._live if c.worn]:
            fresh = next((c for c in self._spare if not c.worn), None)
            if fresh is None:
                break
            self._spare.remove(fresh)
            self._live[self._live.index(container)] = fresh
            self._retire(container, container.worn)
        for container in [c for c in self._spare if c.worn]:
            if len(self._spare) > self._num_spares:  # its replacement is here
                self._spare.remove(container)
                self._retire(container, container.worn)
        self._serve_waiting()

    def _retire(self, container: Container, cause: str) -> None:
        self._to_remove.append(container)
        self._meter.counts[f"replaced_{cause}_total"] += 1

    @property
    def _num_wanted(self) -> int:
        any_worn = any(c.worn for c in (*self._live, *self._spare))
        num_fresh = sum(1 for c in self._spare if not c.worn)
        num_spares = self._num_for_worn if any_worn else self._num_spares
        return self._size - len(self._live) + num_spares - num_fresh - self.num_starting

    def _pinged(self) -> list[Container]:
        return [*self._live, *self._spare]

    def _give_up(self) -> list[Container]:
        containers = self._pinged()
        self._live, self._spare = [], []
        return containers

    def _add_spare(self, container: Container) -> None:
        self._spare.append(container)

    def _is_removable(self, container: Container) -> bool:
        return container.reserved == 0 or container.lost is not None

    def _futures(self) -> list[asyncio.Future[Container]]:
        futures = [waiter.future for waiter in self._waiting]
        self._waiting.clear()
        return futures
