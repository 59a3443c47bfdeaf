"""An environment's tasks as a run draws them: endless for training, a fixed set for measuring."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.types import Task


def training_tasks(environment: Environment, seed: int, start: int = 0) -> Iterator[Task]:
    """The run's tasks from number `start` on. A finite split is drawn again, in another order, when it ends."""
    return itertools.islice(_endless(environment, seed), start, None)


def held_out_tasks(environment: Environment, count: int, seed: int = 0) -> list[Task]:
    """The first `count` tasks of the test split, or all of them if there are fewer."""
    tasks = list(itertools.islice(environment.tasks("test", seed), count))
    if not tasks:
        raise UserError(f"environment {environment.name!r} has no test tasks with these options")
    return tasks


def _endless(environment: Environment, seed: int) -> Iterator[Task]:
    for epoch in itertools.count():
        drawn = 0
        for task in environment.tasks("train", seed + epoch):
            drawn += 1
            yield task
        if not drawn:
            raise UserError(f"environment {environment.name!r} has no training tasks with these options")
