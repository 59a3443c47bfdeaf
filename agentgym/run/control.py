"""What reaches a run from outside between two steps: requests of users, and a notice to save and leave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agentgym.errors import InfraError, UserError
from agentgym.loops.async_rl import Learner
from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import Request, State, Steering
from agentgym.types import Group, Json

log = logging.getLogger(__name__)

T = TypeVar("T")
EARLIER = "it was asked of an earlier process of this run"
THERE = "it was there already"
Act = Callable[[], Awaitable[bool]]
ChangeSetting = Callable[[str, Json], Awaitable[str]]


@dataclass(slots=True)
class Control:
    """Answers the requests in a run's folder. stopped: why the run ends after this step; empty while it goes on."""

    folder: RunFolder
    steering: Steering
    stopped: str = ""

    def begin(self, step: int) -> None:
        """Refuse what nobody answered before this process began: a resumed run is not stopped by an old request.

        Requests that came while this process was starting wait for its first step.
        """
        began = self.folder.status().time
        for request in self.steering.waiting():
            if request.time < began:
                self._answer(request, "refused", step, EARLIER)

    async def after_step(self, step: int, *, save: Act, evaluate: Act, change: ChangeSetting) -> None:
        """Do everything that was asked since the last step, in its order.

        save: makes a checkpoint of the step; evaluate: measures its weights. Both return whether that was done before.
        change: gives a setting another value and says which it had; raises UserError for one that is not allowed.
        """
        for request in self.steering.waiting():
            if request.action == "set":
                try:
                    self._answer(request, "applied", step, await change(request.setting, request.value))
                except UserError as error:
                    self._answer(request, "refused", step, str(error))
                continue
            known = await (evaluate if request.action == "evaluate" else save)()
            if request.action == "stop":
                self.stopped = f"stopped after step {step}, as it was asked to"
            self._answer(request, "applied", step, THERE if known and request.action != "stop" else "")

    def _answer(self, request: Request, state: State, step: int, text: str) -> None:
        """Answer those who asked, and note it among the run's events. A full disk ends the run elsewhere."""
        with contextlib.suppress(InfraError):
            self.steering.answer(request, state, step, text)
            self.folder.event(f"{request.shown} was asked for: {state} at step {step}{text and ': '}{text}")


@dataclass(slots=True)
class StepLock:
    """A learner that locks each step; whoever ends the step releases the lock. In between a run can be saved."""

    learner: Learner
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def step(self, groups: list[Group]) -> dict[str, float]:
        await self.lock.acquire()
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
