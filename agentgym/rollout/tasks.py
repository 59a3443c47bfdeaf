"""An environment's tasks as a run draws them: endless for training, a fixed set for measuring."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.held_loop import each, line_of
from agentgym.types import Group, Json, Split, Task

ROLES = ("system", "user", "assistant", "tool")


class TaskStream:
    """The tasks of one run, group after group. This one takes them as they come; others learn from what was played."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = checked_tasks("the task sampler", lambda: tasks)

    async def draw(self) -> Task:
        """The task of the next group. Raises UserError when the training tasks ran out."""
        try:
            return next(self._tasks)
        except StopIteration:
            raise UserError("the training tasks ran out: a task sampler must be endless") from None

    def observe(self, group: Group) -> None:
        """A group was played and scored. Called once for each, in any order."""

    def metrics(self) -> dict[str, float]:
        """The stream's metrics, as `tasks/...`."""
        return {}

    def state(self, next_group: int) -> Json:
        """What a stream that begins at `next_group` needs to draw as this one would."""
        return None


class TaskSampler(ABC):
    """Inherit it as a frozen dataclass: the fields are the sampler's settings in a recipe."""

    __slots__ = ()

    @abstractmethod
    def tasks(self, environment: Environment, seed: int, start: int) -> Iterator[Task]:
        """The run's tasks from number `start` on, endless. The same arguments give the same tasks.

        So a resumed run continues with the tasks that it would have had.
        """

    def stream(
        self, environment: Environment, seed: int, start: int, *, in_flight: int = 1, state: Json = None
    ) -> TaskStream:
        """The run's tasks from group `start` on; a sampler that learns from the groups gives a stream of its own.

        in_flight: how many groups are played at a time, at most. state: what an earlier stream gave for `start`.
        """
        return TaskStream(self.tasks(environment, seed, start))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled(TaskSampler):
    """The train split in the environment's order for a seed; when it ends, again with the next seed."""

    def tasks(self, environment: Environment, seed: int, start: int) -> Iterator[Task]:
        return itertools.islice(_epochs(environment, itertools.count(seed)), start, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential(TaskSampler):
    """The train split in the environment's order for a seed; when it ends, again in the same order."""

    def tasks(self, environment: Environment, seed: int, start: int) -> Iterator[Task]:
        return itertools.islice(_epochs(environment, itertools.repeat(seed)), start, None)


def drawn(environment: Environment, split: Split, seed: int = 0) -> Iterator[Task]:
    """The environment's tasks. Raises UserError, with the line, where it raises, and for what is not a task."""
    where = f"environment {environment.name!r}: tasks({split!r}, {seed})"
    return checked_tasks(where, partial(environment.tasks, split, seed))


def checked_tasks(where: str, begin: Callable[[], Iterable[Task]]) -> Iterator[Task]:
    """Checks tasks as `drawn` does, whoever made them. where: the beginning of an error."""
    try:
        for task in each(begin):
            if fault := task_fault(task):
                raise UserError(f"{where} gave {task!r:.120}, but {fault}. `agentgym envs check` finds such faults")
            yield task
    except UserError:
        raise
    except Exception as error:  # plugin code: anything may come
        line = f", at {found}" if (found := line_of(error)) else ""
        raise UserError(f"{where} raises {type(error).__name__}: {error}{line}") from error


def task_fault(task: object) -> str:
    """Why an episode can't be played with it; "" for a task."""
    if not isinstance(task, Task):
        return f"it is not a Task but of type {type(task).__name__}"
    if isinstance(task.prompt, str):
        return f'its prompt is a text; give messages, as in [{{"role": "user", "content": {task.prompt[:20]!r}}}]'
    for message in task.prompt:
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            return f"{message!r:.80} is not a message with a content"
        if message.get("role") not in ROLES:
            return f"a message has the role {message.get('role')!r}; there are {', '.join(ROLES)}"
    return ""


def held_out_tasks(environment: Environment, count: int, seed: int = 0) -> list[Task]:
    """The first `count` tasks of the test split, or all of them if there are fewer."""
    tasks = list(itertools.islice(drawn(environment, "test", seed), count))
    if not tasks:
        raise UserError(f"environment {environment.name!r} has no test tasks with these options")
    return tasks


def num_held_out(asked: int, found: int | None = None) -> str:
    """How many tasks are measured on, in words. found: how many there are; None where they were not all drawn."""
    return f"up to {asked} held-out tasks" if found is None else f"{found} held-out tasks"


def _epochs(environment: Environment, seeds: Iterable[int]) -> Iterator[Task]:
    for seed in seeds:
        count = 0
        for task in drawn(environment, "train", seed):
            count += 1
            yield task
        if not count:
            raise UserError(f"environment {environment.name!r} has no training tasks with these options")
