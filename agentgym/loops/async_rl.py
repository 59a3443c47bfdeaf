"""The whole of asynchronous RL: sample and train at the same time, with a bound on staleness.

`train` is the loop of `agentgym train` and of apps/grpo/main.py: copy this file to change it.

A slot is taken before a group is sampled, and given back once the generators hold the weights that were trained on it.
Groups are trained in the order in which they began. So at most `max_staleness` whole steps are queued before a group
that begins. `max_staleness = 0` is synchronous RL. Above it, the next step is trained while the generators load the
weights of the last one.

With `sync_interval` the slots of several steps are given back together, when the weights are published.

With `deterministic` the slot of a group without signal is given back when its turn in that order comes, and not when it
happens to end. Then all slots are given back at places of the loop, where the version of the weights is known. A slot
carries that version, and the group that takes it is sampled by these weights.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

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


Result_co = TypeVar("Result_co", covariant=True)


class Run(Protocol[Result_co]):
    """What `train` needs of a run that is open; `agentgym.run.async_run.AsyncRun` is one.

    position: where the run goes on. measures_ends: whether the first and the last weights are evaluated.
    measures_checkpoints: whether all that are saved are, on the same tasks.
    """

    @property
    def config(self) -> LoopConfig: ...
    @property
    def tasks(self) -> TaskStream: ...
    @property
    def learner(self) -> Learner: ...
    @property
    def generator(self) -> Generator: ...
    @property
    def position(self) -> Position: ...
    @property
    def measures_ends(self) -> bool: ...
    @property
    def measures_checkpoints(self) -> bool: ...

    async def measure_first(self) -> None:
        """Evaluate the weights before the first step, once in a run."""

    async def start_steps(self) -> None:
        """Called before the first step of this process: metrics of steps count from here."""

    async def play(self, task: Task, group_id: int, version: int) -> Group:
        """Play a group that began with these weights: its episodes have rewards and advantages."""

    async def end_step(self, record: StepRecord, position: Position) -> dict[str, float]:
        """Take over what a step leaves; returns its metrics."""

    async def check_sync(self, step: int) -> dict[str, float]:
        """Compare the generators with the trainer."""

    async def evaluate(self, step: int, *, whole: bool) -> dict[str, float]:
        """Measure the generators' weights on held-out tasks. whole: on those of the ends, not on the few of a check."""

    def record(self, record: StepRecord, metrics: dict[str, float]) -> None:
        """Keep and show the metrics and the episodes of a step."""

    async def save(self, position: Position, *, wait: bool) -> None:
        """Make a checkpoint. wait: until it is whole, and not only copied."""

    async def answer_requests(self, position: Position, held: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Do what users asked of the run since the last step, which may change `config`. Returns whether it ends."""

    def release(self, position: Position) -> None:
        """The step is over: until the next one begins, the run can be saved from outside."""

    async def end_without_signal(self, groups: list[Group], position_at: Callable[[int, int], Position]) -> str:
        """Save a run whose last groups had no signal; returns why. Raises InfraError when it is not for the policy."""

    async def end(self, nothing_left: str) -> Result_co:
        """Evaluate the last weights, if the run measures its ends. nothing_left: why it is early; empty if not."""


async def train(run: Run[Result_co], change_loop: Callable[[TrainingLoop], None] = lambda loop: None) -> Result_co:
    """Train from the run's position to the last step; save and evaluate on the way, as its config says.

    change_loop: called with the loop before it runs, for experiments.
    """

    async def after_step(record: StepRecord) -> None:
        config, step, is_last = run.config, record.step, record.step == run.config.steps
        here = partial(loop.position_at, step, record.next_group)
        metrics = await run.end_step(record, here())
        if _is_due(config.check_sync_every, step):
            await loop.held()
            metrics |= await run.check_sync(step)
        saves = is_last or _is_due(config.checkpoint_every, step)
        whole = saves and run.measures_checkpoints
        if (whole or _is_due(config.eval_every, step)) and not (is_last and run.measures_ends):
            await loop.held()
            metrics |= await run.evaluate(step, whole=whole)
        run.record(record, metrics)
        if saves:
            if config.sync_interval > 1:
                await loop.held()  # a run that goes on from here publishes these weights when it begins
            await run.save(here(), wait=is_last or not config.checkpoint_in_background)
        loop.stopping = await run.answer_requests(here(), loop.held)
        if run.config != config:
            await loop.change(run.config)
        run.release(here())

    loop = TrainingLoop(
        config=run.config,
        tasks=run.tasks,
        rollout=lambda task, group_id: run.play(task, group_id, loop.began[group_id]),
        learner=run.learner,
        generator=run.generator,
        after_step=after_step,
        position=run.position,
    )
    change_loop(loop)
    await run.measure_first()
    await run.start_steps()
    without_signal = await loop.run()
    reason = await run.end_without_signal(without_signal, loop.position_at) if without_signal else ""
    return await run.end(reason)


def _is_due(every: int, step: int) -> bool:
    """every: 0 is never."""
    return every > 0 and step % every == 0


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
    _slots: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    _pending: asyncio.Queue[asyncio.Task[Group]] = field(default_factory=asyncio.Queue)
    _tasks: asyncio.TaskGroup = field(default_factory=asyncio.TaskGroup)
    _update: asyncio.Task[None] | None = None
    _trained: int = 0  # the last step
    _unpublished: int = 0  # groups that were trained since the last publication
    _surplus: int = 0  # slots that are not given back, since fewer groups shall be played

    async def run(self) -> list[Group]:
        """Returns after the last step; or earlier, with the groups that a step skipped, when it found none with signal.

        A crash in any rollout ends the run, as an ExceptionGroup.
        """
        without_signal: list[Group] = []
        for version in self._first_versions():
            self._slots.put_nowait(version)
        async with self._tasks as tasks:
            sampler = tasks.create_task(self._sample(tasks))
            for step in range(self.position.step + 1, self.config.steps + 1):
                groups, skipped = await self._collect(step)
                if not groups:
                    without_signal = skipped
                    break
                await self.after_step(await self._step(step, groups, skipped))
                if self.stopping:
                    break
            await self.held()
            sampler.cancel()
            while not self._pending.empty():
                self._pending.get_nowait().cancel()
        return without_signal

    async def held(self) -> None:
        """Wait until the generators hold the weights of the last step, which are published if they were not."""
        if self._unpublished:
            await self._publish()
        await self._updated()

    async def _updated(self) -> None:
        if self._update is not None:
            await asyncio.wait([self._update])  # its error ends all tasks of the loop

    async def change(self, config: LoopConfig) -> None:
        """Go on with another config after a step. With fewer slots those that are given back next are withheld."""
        if self.config.sync_interval > 1:
            await self.held()  # else the groups that were not published yet may have all slots that are left
        self._surplus -= config.num_slots - self.config.num_slots
        self.config = config
        while self._surplus < 0:
            self._surplus += 1
            self._slots.put_nowait(self.generator.version)

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
        versions, slots = self.position.versions, self.config.num_slots
        self._surplus = max(0, len(versions) - slots)
        return [*versions, *[self.position.step] * (slots - len(versions))]

    def _give_back(self, version: int) -> None:
        """A slot, for a group that these weights sample."""
        if self._surplus:
            self._surplus -= 1
        else:
            self._slots.put_nowait(version)

    async def _sample(self, tasks: asyncio.TaskGroup) -> None:
        for group_id in itertools.count(self.position.next_group):
            self.began[group_id] = await self._slots.get()
            task = await self.tasks.draw()
            self._pending.put_nowait(tasks.create_task(self._play(task, group_id)))

    async def _play(self, task: Task, group_id: int) -> Group:
        group = await self.rollout(task, group_id)
        self.tasks.observe(group)
        if not group.has_signal and not self.config.deterministic:
            self._give_back(self.generator.version)  # it will never be trained, so no later group waits for it
        return group

    @property
    def _bound(self) -> int:
        return self.config.max_staleness if self.staleness_bound is None else self.staleness_bound

    async def _step(self, step: int, groups: list[Group], skipped: list[Group]) -> StepRecord:
        staleness = [step - 1 - oldest_version(group) for group in groups]
        assert max(staleness) <= self._bound, f"step {step}: staleness {max(staleness)} is over its bound {self._bound}"
        metrics = await self.learner.step(groups)
        self._trained, self._unpublished = step, self._unpublished + len(groups)
        if step % self.config.sync_interval == 0:
            await self._publish()
        if self.config.deterministic or not self.config.max_staleness:
            await self.held()
        next_group = max(group.group_id for group in [*groups, *skipped]) + 1
        return StepRecord(
            step=step, groups=groups, skipped=skipped, staleness=staleness, next_group=next_group, metrics=metrics
        )

    async def _publish(self) -> None:
        await self._updated()
        await self.learner.publish(self._trained)
        self._update = self._tasks.create_task(self._hand_over(self._trained, self._unpublished))
        self._unpublished = 0

    async def _hand_over(self, step: int, slots: int) -> None:
        await self.generator.update_weights(step)
        for _ in range(slots):
            self._give_back(step)  # only now: a group that began earlier would exceed the staleness of its slot

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
                self._give_back(step - 1)
        return groups, skipped


def oldest_version(group: Group) -> int:
    """The oldest weights that sampled a token of the group's trained episodes."""
    return min((episode.min_version for episode, _ in group.trained()), default=group.start_version)
