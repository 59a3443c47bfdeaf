"""A run that was told to leave: it saves between two steps, as soon as it can, and ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentgym.rl.loop import Learner
from agentgym.types import Group

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class Turns:
    """A learner that takes a turn for each step; whoever ends the step gives it back. In between a run can be saved."""

    learner: Learner
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def step(self, groups: list[Group]) -> dict[str, float]:
        await self.turn.acquire()
        return await self.learner.step(groups)

    async def publish(self, version: int) -> None:
        await self.learner.publish(version)


async def until_noticed(
    work: Coroutine[Any, Any, T], notice: asyncio.Event, leave: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """What the work returns or raises; or what `leave` does after the notice, if it is first, and the work ends."""
    working, noticed = asyncio.create_task(work), asyncio.create_task(notice.wait())
    tasks: list[asyncio.Task[Any]] = [working, noticed]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            leaving = asyncio.create_task(leave())
            tasks.append(leaving)
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                left = await leaving
                working.cancel()
                await asyncio.wait({working})
                if not working.cancelled() and (error := working.exception()):
                    log.warning("the run was saved, then failed while it ended: %s", error)
                return left
        return await working
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
