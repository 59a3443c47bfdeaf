"""How many replicas a service has: more for a queue that lasts, fewer when even the peak leaves one idle."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from agentgym.actors.endpoint import LifecycleActor
from agentgym.actors.replica import Replica
from agentgym.actors.service import Service

log = logging.getLogger(__name__)

A = TypeVar("A", bound=LifecycleActor)
QUEUED = 0.25  # of a replica's slots: a shorter queue is gone before another replica has started
FILLED = 0.7  # of the slots that would remain: a higher peak would soon be a queue again
HOLD_S = 30.0  # after a replica that could not be kept; doubled each time
MAX_HOLD_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSettings:
    min_replicas: int
    """The fewest replicas."""
    max_replicas: int
    """The most replicas."""
    grow_after_s: float = 5.0
    """Seconds that a queue must last before a replica is added."""
    shrink_after_s: float = 60.0
    """Seconds for which even the peak must fit into fewer replicas before one is removed."""
    look_every_s: float = 1.0
    """Seconds between two looks at the demand."""


class Scaler:
    """The decision alone. Demand is counted in replicas' slots, so that what was seen holds for any number of them."""

    def __init__(self, settings: ScalingSettings) -> None:
        self._settings = settings
        self._seen: deque[tuple[float, float]] = deque()  # (when, demand)
        self._hold_until_s = -math.inf
        self._holds = 0

    def wanted(self, now_s: float, *, demand: float, replicas: int) -> int:
        """The number of replicas to have. demand: all requests over the slots of one replica."""
        settings, seen = self._settings, self._seen
        seen.append((now_s, demand))
        oldest_s = now_s - max(settings.grow_after_s, settings.shrink_after_s)
        while len(seen) > 1 and seen[1][0] <= oldest_s:
            seen.popleft()
        lasting = min(self._since(now_s - settings.grow_after_s), default=0.0)
        if lasting > replicas + QUEUED and replicas < settings.max_replicas and now_s >= self._hold_until_s:
            return min(settings.max_replicas, math.ceil(lasting))
        peak = max(self._since(now_s - settings.shrink_after_s), default=math.inf)
        if peak <= FILLED * (replicas - 1) and replicas > settings.min_replicas:
            return replicas - 1
        return replicas

    def lost(self, now_s: float) -> None:
        """A replica could not be kept: grow again only after a pause."""
        self._hold_until_s = now_s + min(MAX_HOLD_S, HOLD_S * 2**self._holds)
        self._holds += 1

    def _since(self, then_s: float) -> list[float]:
        """The demands; none when the time was not seen whole."""
        if self._seen[0][0] > then_s:
            return []
        return [demand for when_s, demand in self._seen if when_s >= then_s]


async def keep_scaled(
    service: Service[A],
    settings: ScalingSettings,
    *,
    slots: Callable[[], Awaitable[float]],
    holds: Callable[[Replica[A]], bool],
) -> None:
    """Scales the service until cancelled, or until the service fails. slots: requests that one replica works on at a
    time, now.

    holds: see `Service.shrink`.
    """
    scaler, lost = Scaler(settings), service.lost
    clock_s = asyncio.get_running_loop().time
    while not service.failed:
        await asyncio.sleep(settings.look_every_s)
        demand = service.demand / await slots()
        if service.failed:
            return
        if service.lost > lost:
            lost = service.lost
            scaler.lost(clock_s())
        now = len(service.staying)
        wanted = scaler.wanted(clock_s(), demand=demand, replicas=now)
        if wanted > now and service.grow(wanted):
            log.info("%s grows from %d to %d replicas: %.1f are asked for", service.name, now, wanted, demand)
        elif wanted < now and service.shrink(holds):
            log.info("%s shrinks from %d to %d replicas: %.1f are asked for", service.name, now, now - 1, demand)
