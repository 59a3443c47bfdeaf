"""The whole of asynchronous RL: sample and train at the same time, with a bound on staleness.

A slot is taken before a group is sampled, and given back once the generators hold the weights that were
trained on it. Groups are trained in the order in which they began. So at most `max_staleness` whole
steps are queued before a group that begins. `max_staleness = 0` is synchronous RL.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from agentgym.rl.config import LoopConfig
from agentgym.rollout.generator import Generator
from agentgym.rollout.tasks import TaskStream
from agentgym.types import Group, Json, Task


class Learner(Protocol):
    """Trains on groups and publishes weights under a version."""

    async def step(self, groups: list[Group]) -> dict[str, float]:
        """One optimizer step; returns metrics."""

    async def publish(self, version: int) -> None:
        """Put the weights into the store under `version`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step. next_group: the first group that no step has taken or skipped yet."""

    step: int
    groups: list[Group]
    skipped: list[Group]
    staleness: list[int]
    next_group: int
    metrics: dict[str, float]


Rollout: TypeAlias = Callable[[Task, int], Coroutine[Any, Any, Group]]
AfterStep: TypeAlias = Callable[[StepRecord], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Progress of a run: steps done (which is the version of the weights), and the next group to train.

    tasks: what the task stream had learned; see `TaskStream.state`.
    """

    step: int = 0
    next_group: int = 0
    tasks: Json = None


@dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """`tasks` gives the task of group `position.next_group` first. `after_step` runs when the generators
    hold the step's weights; it may save and evaluate.

    generator: gets each step's weights. staleness_bound: no trained group may be older, which is asserted;
    None is config.max_staleness, and generators that lag behind need more. stopping: set by `after_step`, it makes
    this step the last.
    """

    config: LoopConfig
    tasks: TaskStream
    rollout: Rollout
    learner: Learner
    generator: Generator
    after_step: AfterStep
    position: Position = field(default_factory=Position)
    staleness_bound: int | None = None
    stopping: bool = False
    _slots: asyncio.Semaphore = field(init=False)
    _pending: asyncio.Queue[asyncio.Task[Group]] = field(init=False)

    async def run(self) -> list[Group]:
        """Returns after the last step; or earlier, with the groups that a step skipped, when it found none with signal.

        A crash in any rollout ends the run, as an ExceptionGroup.
        """
        without_signal: list[Group] = []
        config = self.config
        self._slots = asyncio.Semaphore(config.num_slots)
        self._pending = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            sampler = tasks.create_task(self._sample(tasks))
            for step in range(self.position.step + 1, config.steps + 1):
                groups, skipped = await self._collect(step)
                if not groups:
                    without_signal = skipped
                    break
                await self.after_step(await self._step(step, groups, skipped))
                if self.stopping:
                    break
            sampler.cancel()
            while not self._pending.empty():
                self._pending.get_nowait().cancel()
        return without_signal

    async def _sample(self, tasks: asyncio.TaskGroup) -> None:
        for group_id in itertools.count(self.position.next_group):
            await self._slots.acquire()
            task = await self.tasks.draw()
            self._pending.put_nowait(tasks.create_task(self._play(task, group_id)))

    async def _play(self, task: Task, group_id: int) -> Group:
        group = await self.rollout(task, group_id)
        self.tasks.observe(group)
        if not group.has_signal:
            self._slots.release()  # it will never be trained, so no later group waits for it
        return group

    @property
    def _bound(self) -> int:
        return self.config.max_staleness if self.staleness_bound is None else self.staleness_bound

    async def _step(self, step: int, groups: list[Group], skipped: list[Group]) -> StepRecord:
        staleness = [step - 1 - oldest_version(group) for group in groups]
        assert max(staleness) <= self._bound, f"step {step}: staleness {max(staleness)} is over its bound {self._bound}"
        metrics = await self.learner.step(groups)
        await self.learner.publish(step)
        await self.generator.update_weights(step)
        for _ in groups:
            self._slots.release()  # only now: a group that began earlier would exceed the staleness of its slot
        next_group = max(group.group_id for group in [*groups, *skipped]) + 1
        return StepRecord(
            step=step, groups=groups, skipped=skipped, staleness=staleness, next_group=next_group, metrics=metrics
        )

    async def _collect(self, step: int) -> tuple[list[Group], list[Group]]:
        """Groups with signal in start order, and those that were skipped on the way; without any, all had no signal.

        After a step with fewer groups, later groups wait longer than their slots allow for; what is too old by
        then is skipped too.
        """
        oldest = step - 1 - self._bound
        groups: list[Group] = []
        skipped: list[Group] = []
        wanted = self.config.groups_per_step
        while len(groups) < wanted:
            no_signal = [group for group in skipped if not group.has_signal]
            refilled = len(no_signal) >= wanted * self.config.max_refills
            if refilled and (groups or len(no_signal) == len(skipped)):
                break  # train on fewer, or end, rather than wait forever
            group = await (await self._pending.get())
            if group.has_signal and oldest_version(group) < oldest:
                skipped.append(group)
                self._slots.release()
            else:
                (groups if group.has_signal else skipped).append(group)
        return groups, skipped


def oldest_version(group: Group) -> int:
    """The oldest weights that sampled a token of the group's trained episodes."""
    return min((episode.min_version for episode, _ in group.trained()), default=group.start_version)
