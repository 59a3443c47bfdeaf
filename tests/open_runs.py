"""A run that is open for the asynchronous loop, without engines: what a step leaves, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.loops.async_rl import Position
from agentgym.recipe import Recipe
from agentgym.rollout.activity import Activity
from agentgym.rollout.group import InfraMonitor
from agentgym.rollout.playing import Elsewhere, GroupOrder, Turns
from agentgym.rollout.tasks import TaskStream
from agentgym.run.async_run import AsyncRun
from agentgym.run.background import Background
from agentgym.run.changes import Changes
from agentgym.run.control import Control, StepLock
from agentgym.run.engines import Engines
from agentgym.run.metrics import StepClock, StepMeter
from agentgym.run.resume import RunState, StartPoint
from agentgym.run.session import Session
from agentgym.run.settle import settle_served
from agentgym.run.sinks import Sinks
from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import Steering
from agentgym.types import Group, Task


@dataclass
class Reporter:
    notes: list[str] = field(default_factory=list)

    def phase(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, step: int, total: int, metrics: Mapping[str, float], after_s: float = 0.0) -> None:
        pass

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        pass

    def close(self) -> None:
        pass


class Generators:
    version = 0

    async def metrics(self) -> dict[str, float]:
        return {}

    async def update_weights(self, version: int) -> None:
        self.version = version


class Learner:
    """Trains nothing."""

    trained_logprobs: Sequence[float] = ()

    def ended(self, group: Group) -> None:
        pass

    def skipped(self, groups: Sequence[Group]) -> None:
        pass

    async def step(self, groups: list[Group]) -> dict[str, float]:
        return {}

    async def publish(self, version: int) -> None:
        pass


class Trainer:
    """Its journal records marks in `done`."""

    def __init__(self, done: list[str]) -> None:
        self.done, self.journal = done, self

    def mark(self, position: Mapping[str, Any]) -> None:
        self.done.append(f"mark {position['step']}")

    def metrics(self) -> dict[str, float]:
        return {}


class Gym:
    activity = Activity()

    def sandbox_metrics(self) -> dict[str, float]:
        return {}


class Checkpoints:
    """Records what is saved in `done`."""

    none_yet = False

    def __init__(self, done: list[str]) -> None:
        self.done = done

    async def save(self, position: Position) -> None:
        self.done.append("checkpoint")

    begin = save

    async def settle(self) -> None:
        pass

    async def finish(self) -> None:
        self.done.append("whole")

    def metrics(self) -> dict[str, float]:
        return {}


class Idle:
    """Rollouts of which none is being played."""

    async def play(self, order: GroupOrder) -> Group:
        raise AssertionError(order)

    async def turns(self) -> Turns:
        return {}

    async def elsewhere(self) -> Elsewhere:
        return Elsewhere()


class Groups:
    """Those in flight; `played` is what each is."""

    def __init__(self, played: Group | None = None) -> None:
        self.played = played

    async def play(self, *_: object, **__: object) -> Group:
        assert self.played is not None
        return self.played

    async def forget(self, *_: object) -> None:
        pass


def open_run(
    recipe: Recipe, folder: RunFolder, done: list[str], *, learner: Any = None, played: Group | None = None
) -> AsyncRun:
    """done: gets each mark in the journal, and each checkpoint."""
    learner, generator, trainer = learner or Learner(), Generators(), Trainer(done)
    parts: Any = {
        "player": None,
        "rollouts": Idle(),
        "generator": generator,
        "trainer": trainer,
        "reference": None,
        "store": None,
    }
    gym: Any = Gym()
    session = Session(
        settled=settle_served(recipe),
        folder=folder,
        reporter=Reporter(),
        start=StartPoint(),
        gym=gym,
        sinks=Sinks(),
        background=Background(),
        engines=Engines(learner=learner, **parts),
    )
    rest: Any = {"generator": generator, "in_flight": Groups(played), "checkpoints": Checkpoints(done)}
    return AsyncRun(
        session=session,
        config=recipe.loop,
        learner=StepLock(learner, asyncio.Lock()),
        position=Position(),
        tasks=TaskStream(Task(task_id=str(n), prompt=()) for n in range(99)),
        state=RunState(),
        control=Control(folder, Steering(folder.path)),
        changes=Changes(folder=folder, recipe=recipe),
        meter=StepMeter(clock=StepClock(gym.activity)),
        monitor=InfraMonitor(1.0),
        last=Position(),
        **rest,
    )
