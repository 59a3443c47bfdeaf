"""Environments that raise, hang, change, hold others up, or whose tasks are not what they promise."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import replace

from sums import Sums, say

from agentgym import EpisodeContext, Message, Reply, Split, Task, UserError, reward


class OracleLoses(Sums):
    def solve(self, task: Task) -> Iterator[Message]:
        yield say(f"It is {task.answer}.")


class OneAnswer(Sums):
    """One answer is always right."""

    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), answer=7)


class ReplyRaises(Sums):
    def is_right(self, text: str, task: Task) -> bool:
        return int(text) == task.answer if text.isdigit() and text.isascii() else json.loads(text or "0") == task.answer


class RewardRaises(Sums):
    @reward(weight=0.1, inline=True)
    def first_letter(self, episode) -> float:
        return float(episode.messages[-1]["content"][0] == "#") * 0.1


class OracleRaises(Sums):
    def solve(self, task: Task) -> Iterator[Message]:
        yield say(str(task.answer["sum"]))


class RewardHangs(Sums):
    @reward(weight=0.1, timeout_s=0.05)
    async def slow(self, episode) -> float:
        if "```" in episode.messages[-1]["content"]:
            await asyncio.sleep(60)
        return 0.0


class RewardIsNan(Sums):
    @reward(weight=0.1, inline=True)
    def brevity(self, episode) -> float:
        length = len(episode.messages[-1]["content"])
        return 0.1 / length if length else math.nan


class Blocks(Sums):
    async def reply(self, context: EpisodeContext) -> Reply:
        time.sleep(1.0)
        return await super().reply(context)


class SlowTasks(Sums):
    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for task in super().tasks(split, seed):
            time.sleep(0.12)
            yield task


class SlowReward(Sums):
    @reward(weight=0.1)
    async def judged(self, episode) -> float:
        await asyncio.sleep(0.6)
        return 0.0


class DrawsOnSelf(Sums):
    """The numbers come from a generator that goes on."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        found = list(super().tasks(split, seed))
        self._random.shuffle(found)
        return iter(found)


class HashesTasks(Sums):
    """The order of a set of texts."""

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        by_id = {task.task_id: task for task in super().tasks(split, seed)}
        return (by_id[task_id] for task_id in set(by_id))


class HashesScores(Sums):
    """What a wrong answer earns depends on the process."""

    @reward(weight=0.1, inline=True)
    def noise(self, episode) -> float:
        return hash(episode.task.task_id) % 1000 / 1000


class DrawsScores(Sums):
    @reward(weight=0.1, inline=True)
    def noise(self, episode) -> float:
        return random.random()


class StateOnSelf(Sums):
    """The task of the episode that began last."""

    async def start(self, context: EpisodeContext) -> None:
        await super().start(context)
        self._task = context.task

    async def reply(self, context: EpisodeContext) -> Reply:
        context.info["success"] = self.is_right(context.messages[-1]["content"], self._task)
        return Reply(done=True)


class NotATask(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), split="train")


class YieldsMappings(Sums):
    """No tasks, but what they would be made of."""

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        return ({"task_id": task.task_id, "prompt": task.prompt} for task in super().tasks(split, seed))


class MessageWithoutContent(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), prompt=({"role": "user", "text": f"{a} + {b}"},))


class KeysAreTuples(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), answer={(a, b): a + b})

    def is_right(self, text: str, task: Task) -> bool:
        return super().is_right(text, replace(task, answer=min(task.answer.values())))

    def solve(self, task: Task) -> Iterator[Message]:
        yield say(str(min(task.answer.values())))


class RightIsUnscored(Sums):
    """The reward has no score for a right answer."""

    @reward(weight=0.1, inline=True)
    def doubt(self, episode) -> float | None:
        return None if episode.info["success"] else 0.0


class EmptyIsUnscored(Sums):
    """No fault: a reward need not score everything."""

    @reward(weight=0.1, inline=True)
    def brevity(self, episode) -> float | None:
        length = len(episode.messages[-1]["content"].strip())
        return 0.1 / length if length else None


class SolvesSome(Sums):
    """No fault: the oracle knows no way to do some tasks."""

    def solve(self, task: Task) -> Iterator[Message] | None:
        return super().solve(task) if task.answer % 3 else None


class AnswerIsASet(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), answer={a + b})

    def is_right(self, text: str, task: Task) -> bool:
        return super().is_right(text, replace(task, answer=min(task.answer)))

    def solve(self, task: Task) -> Iterator[Message]:
        yield say(str(min(task.answer)))


class NoTrain(Sums):
    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        return super().tasks(split, seed) if split == "test" else iter(())


class OneId(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), task_id=f"sums/{a}")


class TestRepeats(Sums):
    __test__ = False

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for task in super().tasks(split, seed):
            yield task
            yield task


class Overlaps(Sums):
    """Split by position: the next seed's train tasks are this one's test tasks."""

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for number in range(400):
            if (number % 4 == 0) == (split == "test"):
                yield self.task(*self.numbers(number, seed), split)


class StructureOverlaps(Sums):
    """It promises to keep sums of one size apart."""

    def structure(self, task: Task) -> object:
        return task.answer


class LongPrompts(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        task = super().task(a, b, split)
        return replace(task, prompt=({"role": "system", "content": "Be right. " * 600}, *task.prompt))


class TasksRaise(Sums):
    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for task in super().tasks(split, seed):
            if "9" in task.task_id:
                raise KeyError(task.task_id)
            yield task


class NeedsData(Sums):
    """No fault of the environment: the user has not installed what it needs."""

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        raise UserError("sums: there is no file sums.jsonl; fetch it first")


class TasksHang(Sums):
    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        while True:
            time.sleep(0.01)


class ReplyHoldsTheLoop(Sums):
    async def reply(self, context: EpisodeContext) -> Reply:
        while True:
            time.sleep(0.01)


class OracleHangs(Sums):
    def solve(self, task: Task) -> Iterator[Message]:
        time.sleep(1e6)
        yield say("")


class PromptIsAText(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), prompt=f"{a} + {b}")  # type: ignore[arg-type]


class IdIsANumber(Sums):
    def task(self, a: int, b: int, split: Split) -> Task:
        return replace(super().task(a, b, split), task_id=a)  # type: ignore[arg-type]


class PlainReply(Sums):
    def reply(self, context: EpisodeContext) -> Reply:  # type: ignore[override]
        return Reply(done=True)


class InitRaises(Sums):
    def __init__(self) -> None:
        self.table = {}["table"]


class NeedsItsTable(Sums):
    def __init__(self, *, table: str) -> None:
        self.table = table
