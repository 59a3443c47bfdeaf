"""An environment without a fault, whose subclasses have one each."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from agentgym import Environment, EpisodeContext, Message, Reply, Split, Task, UserError

TEST_ONE_IN = 4


def say(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Sums(Environment):
    """Add two numbers; the reply is the sum and nothing else."""

    name = "sums"
    rewards = {"success": 1.0}

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """a is at most b, so 3 + 5 and 5 + 3 are one question; each comes once in a stream."""
        for number in range(400):
            a, b = self.numbers(number, seed)
            if ((a * 31 + b) % TEST_ONE_IN == 0) == (split == "test"):
                yield self.task(a, b, split)

    def numbers(self, number: int, seed: int) -> tuple[int, int]:
        low, high = divmod((number * 7 + seed * 11) % 400, 20)
        return (low, low + high)

    def task(self, a: int, b: int, split: Split) -> Task:
        return Task(
            task_id=f"sums/{a}+{b}",
            prompt=({"role": "user", "content": f"What is {a} + {b}? Reply with the number."},),
            answer=a + b,
            split=split,
        )

    async def start(self, context: EpisodeContext) -> None:
        context.info.update(success=False)

    async def reply(self, context: EpisodeContext) -> Reply:
        context.info["success"] = self.is_right(context.messages[-1]["content"], context.task)
        return Reply(done=True)

    def is_right(self, text: str, task: Task) -> bool:
        return re.fullmatch(r"[0-9]{1,3}", text.strip()) is not None and int(text) == task.answer

    def solve(self, task: Task) -> Iterator[Message]:
        yield say(str(task.answer))


class Endless(Sums):
    """A test split that does not end."""

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        if split == "train":
            yield from super().tasks(split, seed)
            return
        for number in itertools.count(1):
            yield self.task(4 * number, 4000 * number, split)

    def is_right(self, text: str, task: Task) -> bool:
        return text.isascii() and text == str(task.answer)


class TestOnly(Sums):
    """An evaluation set: it has no train split."""

    splits = ("test",)

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        if split == "train":
            raise UserError("it has no train split; train on sums")
        return super().tasks(split, seed)
