"""A task sampler that learns which tasks have signal: groups whose rewards differ, so that something can be learned."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.rollout.tasks import Shuffled, TaskStream
from agentgym.types import Group, Json, Task

FORGET = 0.5  # what a task's earlier groups still count when it is played again
MOST_TASKS = 20_000  # whose groups are remembered one by one; a split may be endless


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnable(Shuffled):
    """Prefers tasks whose groups are likely to have signal, and never stops trying the others.

    An estimate begins at 1, follows the groups of the same `Task.difficulty`, and then those of the task itself. The
    task of a group depends on the seed and on the groups that began well before it, not on what ended first.
    """

    candidates: int = 4
    """Tasks of the shuffled split among which each group's task is chosen, in proportion to their estimated shares of
    groups with signal; more prefer such tasks more strongly."""
    explore: float = 0.2
    """The share of groups that take their first candidate, whatever the estimates say."""
    memory: int = 64
    """How many groups of a difficulty its estimate is made of."""

    def __post_init__(self) -> None:
        if self.candidates < 2 or not 0 < self.explore <= 1 or self.memory < 1:
            raise ValueError(
                f"task_sampler: candidates {self.candidates}, explore {self.explore}, memory {self.memory}: allowed "
                "are candidates >= 2, memory >= 1, and 0 < explore <= 1: without exploring, a task that had no signal "
                "would never be tried again"
            )

    def stream(
        self, environment: Environment, seed: int, start: int, *, in_flight: int = 1, state: Json = None
    ) -> TaskStream:
        tasks = self.tasks(environment, seed, start * self.candidates)
        return LearnableStream(self, tasks, seed=seed, start=start, lag=2 * in_flight, state=state)


class Played(NamedTuple):
    """One group, as the estimates take it."""

    task_id: str
    difficulty: int
    has_signal: bool


@dataclass(slots=True)
class Estimates:
    """Groups and those with signal, by task and by difficulty; older ones count less."""

    memory: int
    by_task: dict[str, list[float]] = field(default_factory=dict)
    by_difficulty: dict[int, list[float]] = field(default_factory=dict)

    def add(self, played: Played) -> None:
        _count(self.by_difficulty.setdefault(played.difficulty, [0.0, 0.0]), 1 - 1 / self.memory, played.has_signal)
        counts = self.by_task.pop(played.task_id, [0.0, 0.0])  # back at the end: the most recently played
        _count(counts, FORGET, played.has_signal)
        self.by_task[played.task_id] = counts
        if len(self.by_task) > MOST_TASKS:
            del self.by_task[next(iter(self.by_task))]

    def of_difficulty(self, difficulty: int) -> float:
        groups, with_signal = self.by_difficulty.get(difficulty, (0.0, 0.0))
        return (with_signal + 1) / (groups + 1)

    def of(self, task: Task) -> float:
        """The share of this task's groups that are expected to have signal, in (0, 1]."""
        groups, with_signal = self.by_task.get(task.task_id, (0.0, 0.0))
        return (with_signal + self.of_difficulty(task.difficulty)) / (groups + 1)


def _count(counts: list[float], kept: float, has_signal: bool) -> None:
    counts[0] = counts[0] * kept + 1
    counts[1] = counts[1] * kept + has_signal


class LearnableStream(TaskStream):
    """Group g is drawn with the estimates of all groups before g - lag, for which it waits where one is still played.

    So the draws do not depend on which group happened to end first, and a resumed run makes the same ones.
    """

    def __init__(
        self, sampler: Learnable, tasks: Iterator[Task], *, seed: int, start: int, lag: int, state: Json
    ) -> None:
        super().__init__(tasks)
        self._sampler, self._seed, self._next, self._lag = sampler, seed, start, lag
        self._saved = Estimates(sampler.memory)  # of the groups before `_num_saved`
        self._num_saved = start  # without a state nothing is known of what was played before
        self._played: dict[int, Played] = {}  # of the groups from there on
        if state is not None:
            self._restore(state)
        self._known = deepcopy(self._saved)  # what the draws see: the groups before `_num_known`
        self._num_known = self._num_saved
        self._ended = asyncio.Event()

    async def draw(self) -> Task:
        group, self._next = self._next, self._next + 1
        while self._num_known < group - self._lag:
            while (played := self._played.get(self._num_known)) is None:
                self._ended.clear()
                await self._ended.wait()
            self._known.add(played)
            self._num_known += 1
        candidates = list(itertools.islice(self._tasks, self._sampler.candidates))
        if len(candidates) < self._sampler.candidates:
            raise UserError("the training tasks ran out: a task sampler must be endless")
        rng = random.Random(f"{self._seed}/{group}")
        if rng.random() < self._sampler.explore:
            return candidates[0]
        return rng.choices(candidates, [self._known.of(task) for task in candidates])[0]

    def observe(self, group: Group) -> None:
        self._played[group.group_id] = Played(group.task.task_id, group.task.difficulty, group.has_signal)
        self._ended.set()

    def metrics(self) -> dict[str, float]:
        return {
            f"tasks/signal_difficulty_{difficulty}": self._known.of_difficulty(difficulty)
            for difficulty in sorted(self._known.by_difficulty)
        }

    def state(self, next_group: int) -> Json:
        # Groups that the draws still wait for are kept: a checkpoint may come before the next draw.
        while self._num_saved < min(next_group - self._lag, self._num_known):
            self._saved.add(self._played.pop(self._num_saved))
            self._num_saved += 1
        recent: list[Json] = [list(self._played[group]) for group in range(self._num_saved, next_group)]
        by_difficulty: list[Json] = [[difficulty, *counts] for difficulty, counts in self._saved.by_difficulty.items()]
        return {
            "num_groups": self._num_saved,
            "by_task": {name: list(counts) for name, counts in self._saved.by_task.items()},
            "by_difficulty": by_difficulty,
            "recent": recent,
        }

    def _restore(self, state: Json) -> None:
        try:
            saved = cast(Mapping[str, Any], state)
            self._num_saved = saved["num_groups"]
            self._saved.by_task = {name: list(counts) for name, counts in saved["by_task"].items()}
            self._saved.by_difficulty = {key: counts for key, *counts in saved["by_difficulty"]}
            self._played = {self._num_saved + n: Played(*played) for n, played in enumerate(saved["recent"])}
        except (TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"what this checkpoint's tasks were chosen by can't be read ({error!r}): it was saved with another "
                "task_sampler; resume with that one"
            ) from error
