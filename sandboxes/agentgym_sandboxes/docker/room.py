"""Room for tasks' containers on an engine: the sum of their memory and cores is bounded, and they wait in turn.

One for which an episode waits that has another one comes first, and starts in any case if no other such one is there:
else all episodes could wait for each other's memory.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.failures import ImageUnusable
from agentgym_sandboxes.docker.machine import Request

LOOK_EVERY_S = 0.05


class Share:
    """What a container takes. container: None while it starts. beside: see `Request`."""

    def __init__(self, memory_mib: int, cpus: float, beside: bool) -> None:
        self.memory_mib = memory_mib
        self.cpus = cpus
        self.beside = beside
        self.container: Container | None = None


class Room:
    """memory_mib, cpus: of all of them. most_cpus: of one; a task that asks for more gets these."""

    def __init__(self, memory_mib: int, cpus: float, most_cpus: float) -> None:
        self._memory_mib = memory_mib
        self._cpus = cpus
        self._most_cpus = most_cpus
        self._shares: list[Share] = []
        self._waiting: collections.deque[Share] = collections.deque()

    async def take(self, request: Request, on_short: Callable[[], None]) -> Share:
        """Wait in turn until it fits. on_short: called while it does not, to give up what nobody uses.

        Raises ImageUnusable for what never fits.
        """
        share = Share(request.memory_mib, min(request.cpus, self._most_cpus, self._cpus), request.beside)
        if share.memory_mib > self._memory_mib:
            raise ImageUnusable(
                f"no session starts in image {request.name}: its task asks for {share.memory_mib} MiB of memory, and "
                f"the engine has {self._memory_mib} MiB for tasks (sandbox.options.tasks_memory_mib)"
            )
        if share.beside:
            self._waiting.appendleft(share)
        else:
            self._waiting.append(share)
        try:
            while self._waiting[0] is not share or not self._fits(share):
                on_short()
                await asyncio.sleep(LOOK_EVERY_S)
            self._shares.append(share)
        finally:
            self._waiting.remove(share)
        return share

    def free(self, share: Share) -> None:
        """No container came of it."""
        self._shares.remove(share)

    def _fits(self, share: Share) -> bool:
        self._shares = [one for one in self._shares if one.container is None or one.container.lost is None]
        if share.beside and not any(one.beside for one in self._shares):
            return True
        memory_mib = sum(one.memory_mib for one in self._shares) + share.memory_mib
        return memory_mib <= self._memory_mib and sum(one.cpus for one in self._shares) + share.cpus <= self._cpus
