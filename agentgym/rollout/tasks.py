"""An environment's tasks as a run draws them: endless for training, a fixed set for measuring."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from agentgym.components import name_of
from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.held_loop import each
from agentgym.plugin_errors import blamed, detail_of, origin_of
from agentgym.types import Group, Json, Split, Task

ROLES = ("system", "user", "assistant", "tool")


class TaskStream:
    """The tasks of one run, group after group. This one takes them as they come; others learn from what was played."""

    def __init__(self, tasks: Iterator[Task], sampler: TaskSampler | None = None) -> None:
        """sampler: whose tasks they are, for errors."""
        self._tasks = checked_tasks(_shown(sampler), lambda: tasks, sampler)

    async def draw(self) -> Task:
        """The task of the next group. Raises UserError when the training tasks ran out."""
        try:
            return next(self._tasks)
        except StopIteration:
            raise UserError("the training tasks ran out: a task sampler must be endless") from None

    @property
    def learns(self) -> bool:
        """Whether it takes notice of what was played."""
        return type(self).observe is not TaskStream.observe

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
        return TaskStream(self.tasks(environment, seed, start), self)


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


class GuardedStream(TaskStream):
    """A stream of a sampler that is a plugin: what its methods raise names the sampler."""

    def __init__(self, sampler: TaskSampler, stream: TaskStream) -> None:
        self._sampler, self._stream = sampler, stream

    @property
    def learns(self) -> bool:
        return self._stream.learns

    async def draw(self) -> Task:
        with blamed("task_samplers", self._sampler):
            return await self._stream.draw()

    def observe(self, group: Group) -> None:
        with blamed("task_samplers", self._sampler):
            self._stream.observe(group)

    def metrics(self) -> dict[str, float]:
        with blamed("task_samplers", self._sampler):
            return self._stream.metrics()

    def state(self, next_group: int) -> Json:
        with blamed("task_samplers", self._sampler):
            return self._stream.state(next_group)


def open_stream(
    sampler: TaskSampler, environment: Environment, seed: int, start: int, *, in_flight: int, state: Json
) -> TaskStream:
    """What `sampler.stream` gives. An error of a plugin's sampler or stream names it."""
    with blamed("task_samplers", sampler):
        stream = sampler.stream(environment, seed, start, in_flight=in_flight, state=state)
    return GuardedStream(sampler, stream) if origin_of(type(stream)) else stream


def first_tasks(sampler: TaskSampler, environment: Environment, seed: int, count: int) -> list[Task]:
    """The first tasks of a run. Raises UserError, with the sampler's line, where it raises."""
    tasks = checked_tasks(_shown(sampler), partial(sampler.tasks, environment, seed, 0), sampler)
    return list(itertools.islice(tasks, count))


def _shown(sampler: TaskSampler | None) -> str:
    return f"the task sampler {name_of('task_samplers', sampler)!r}" if sampler else "the task sampler"


def drawn(environment: Environment, split: Split, seed: int = 0) -> Iterator[Task]:
    """The environment's tasks, which say the split that they are of, also where the environment left that out.

    Raises UserError, with the line, where it raises, and for what is not a task.
    """
    where = f"environment {environment.name!r}: tasks({split!r}, {seed})"
    for task in checked_tasks(where, partial(environment.tasks, split, seed), environment):
        yield task if task.split == split else replace(task, split=split)


def checked_tasks(where: str, begin: Callable[[], Iterable[Task]], thing: object = None) -> Iterator[Task]:
    """Checks tasks as `drawn` does. where: the beginning of an error. thing: what makes them."""
    try:
        for task in each(begin):
            if fault := task_fault(task):
                raise UserError(f"{where} gave {task!r:.120}, but {fault}. `agentgym envs check` finds such faults")
            yield task
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # plugin code: anything may come
        raise UserError(f"{where} raises {type(error).__name__}: {detail_of(error, thing)}") from error


def task_fault(task: object) -> str:
    """Why an episode can't be played with it; "" for a task."""
    if not isinstance(task, Task):
        return f"it is not a Task but of type {type(task).__name__}"
    if not isinstance(task.task_id, str):
        return f"its task_id {task.task_id!r:.80} is not a text"
    return messages_fault("its prompt", task.prompt)


def messages_fault(what: str, messages: object) -> str:
    """Why these are not messages; "" where they are. what: they are."""
    if isinstance(messages, str):
        return f'{what} is a text; give messages, as in [{{"role": "user", "content": {messages[:20]!r}}}]'
    if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
        return f"{what} is {messages!r:.80}; give a list of messages"
    for message in messages:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """How many tasks are measured on. found: None where they were not all drawn. note: `Environment.split_note`."""

    asked: int
    found: int | None = None
    note: str = ""

    @classmethod
    def of(cls, environment: Environment, asked: int, found: int | None) -> Self:
        with blamed("environments", environment):
            return cls(asked=asked, found=found, note=environment.split_note("test"))

    def __str__(self) -> str:
        return f"up to {self.asked} held-out tasks" if self.found is None else f"{self.found} held-out tasks"

    @property
    def missing(self) -> int:
        """Tasks that the split lacks, as far as that is known."""
        return 0 if self.found is None else max(0, self.asked - self.found)

    @property
    def warning(self) -> str:
        """That there are fewer than asked for, and what the environment says of its split; else ""."""
        few = f"{self.found} tasks, not {self.asked}: the test split has no more" if self.missing else ""
        return ". ".join(filter(None, (few, self.note)))


def _epochs(environment: Environment, seeds: Iterable[int]) -> Iterator[Task]:
    for seed in seeds:
        count = 0
        for task in drawn(environment, "train", seed):
            count += 1
            yield task
        if not count:
            raise UserError(f"environment {environment.name!r} has no training tasks with these options")
