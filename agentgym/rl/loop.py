"""The whole of asynchronous RL: sample and train at the same time, with a bound on staleness.

A slot is taken before a group is sampled, and given back once the generators hold the weights that were
trained on it. Groups are trained in the order in which they began. So at most `max_staleness` whole
steps are queued before a group that begins. `max_staleness = 0` is synchronous RL. Above it, the next step is trained
while the generators load the weights of the last one.

With `deterministic` the slot of a group without signal is given back when its turn in that order comes, and not when it
happens to end. Then all slots are given back at places of the loop, where the version of the weights is known. A slot
carries that version, and the group that takes it is sampled by these weights.
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

    tasks: what the task stream had learned; see `TaskStream.state`. versions: of a deterministic loop, the weights that
    sample the groups from `next_group` on, one for each slot.
    """

    step: int = 0
    next_group: int = 0
    tasks: Json = None
    versions: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class TrainingLoop:
    """`tasks` gives the task of group `position.next_group` first. `after_step` runs between two steps, and may save;
    to evaluate, it waits for `held`.

    generator: gets each step's weights. staleness_bound: no trained group may be older, which is asserted;
    None is config.max_staleness, and generators that lag behind need more. stopping: set by `after_step`, it makes
    this step the last. began: the version of the weights by group, of those that began and were not trained or skipped.
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
    began: dict[int, int] = field(default_factory=dict)
    _slots: asyncio.Queue[int] = field(init=False)
    _pending: asyncio.Queue[asyncio.Task[Group]] = field(init=False)
    _tasks: asyncio.TaskGroup = field(init=False)
    _update: asyncio.Task[None] | None = field(init=False, default=None)

    async def run(self) -> list[Group]:
        """Returns after the last step; or earlier, with the groups that a step skipped, when it found none with signal.

        A crash in any rollout ends the run, as an ExceptionGroup.
        """
        without_signal: list[Group] = []
        config = self.config
        self._slots, self._pending = asyncio.Queue(), asyncio.Queue()
        for version in self._first_versions():
            self._slots.put_nowait(version)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
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

    async def held(self) -> None:
        """Wait until the generators hold the weights of the last step."""
        if self._update is not None:
            await asyncio.wait([self._update])  # its error ends all tasks of the loop

    def position_at(self, step: int, next_group: int) -> Position:
        """Where the run is when this step is done, for a loop that continues there."""
        versions: tuple[int, ...] = ()
        if self.config.deterministic:
            free = [self._slots.get_nowait() for _ in range(self._slots.qsize())]
            for version in free:
                self._slots.put_nowait(version)
            versions = (*(self.began[group] for group in sorted(self.began) if group >= next_group), *free)
        return Position(step=step, next_group=next_group, tasks=self.tasks.state(next_group), versions=versions)

    def _first_versions(self) -> list[int]:
        """One for each slot. A recipe that was changed may have more or fewer of them."""
        position, slots = self.position, self.config.num_slots
        return [*position.versions, *[position.step] * slots][:slots]

    async def _sample(self, tasks: asyncio.TaskGroup) -> None:
        for group_id in itertools.count(self.position.next_group):
            self.began[group_id] = await self._slots.get()
            task = await self.tasks.draw()
            self._pending.put_nowait(tasks.create_task(self._play(task, group_id)))

    async def _play(self, task: Task, group_id: int) -> Group:
        group = await self.rollout(task, group_id)
        self.tasks.observe(group)
        if not group.has_signal and not self.config.deterministic:
            self._slots.put_nowait(self.generator.version)  # it will never be trained, so no later group waits for it
        return group

    @property
    def _bound(self) -> int:
        return self.config.max_staleness if self.staleness_bound is None else self.staleness_bound

    async def _step(self, step: int, groups: list[Group], skipped: list[Group]) -> StepRecord:
        staleness = [step - 1 - oldest_version(group) for group in groups]
        assert max(staleness) <= self._bound, f"step {step}: staleness {max(staleness)} is over its bound {self._bound}"
        metrics = await self.learner.step(groups)
        await self.held()
        await self.learner.publish(step)
        self._update = self._tasks.create_task(self._hand_over(step, len(groups)))
        if self.config.deterministic or not self.config.max_staleness:
            await self.held()
        next_group = max(group.group_id for group in [*groups, *skipped]) + 1
        return StepRecord(
            step=step, groups=groups, skipped=skipped, staleness=staleness, next_group=next_group, metrics=metrics
        )

    async def _hand_over(self, step: int, slots: int) -> None:
        await self.generator.update_weights(step)
        for _ in range(slots):
            self._slots.put_nowait(step)  # only now: a group that began earlier would exceed the staleness of its slot

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
            del self.began[group.group_id]
            trained = group.has_signal and oldest_version(group) >= oldest
            (groups if trained else skipped).append(group)
            if not trained and (group.has_signal or self.config.deterministic):
                self._slots.put_nowait(step - 1)
        return groups, skipped


def oldest_version(group: Group) -> int:
    """The oldest weights that sampled a token of the group's trained episodes."""
    return min((episode.min_version for episode, _ in group.trained()), default=group.start_version)
