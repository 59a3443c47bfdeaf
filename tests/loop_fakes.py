"""A generator, a learner and tasks for tests of the loop."""

import asyncio
import itertools

from agentgym.rollout.tasks import TaskStream
from agentgym.types import Task


class FakeGenerator:
    def __init__(self, update_s: float = 0.001) -> None:
        self.version = 0
        self.update_s = update_s

    async def generate(self, request):
        raise AssertionError("the rollouts of these tests sample nothing")

    async def update_weights(self, version: int) -> None:
        await asyncio.sleep(self.update_s)
        self.version = version


class FakeLearner:
    def __init__(self) -> None:
        self.trained: list[int] = []
        self.published: list[int] = []

    async def step(self, groups):
        self.trained += [group.group_id for group in groups]
        await asyncio.sleep(0.001)
        return {}

    async def publish(self, version):
        self.published.append(version)


def endless_tasks(start: int = 0):
    return TaskStream(Task(task_id=str(n), prompt=()) for n in itertools.count(start))
