"""An environment without a fault, whose subclasses have one each."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import replace

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


class Digits(Sums):
    """A number from 1 to 9, by guesses: what is right in another task is often guessed on the way to it."""

    max_turns = 4
    splits = ("test",)

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for number in range(40):
            prompt = ({"role": "user", "content": f"Game {number}: guess my number from 1 to 9."},)
            secret = random.Random(f"{number}/{seed}").randint(1, 9)
            yield Task(task_id=f"digits/{number}", prompt=prompt, answer=secret, split="test")

    async def reply(self, context: EpisodeContext) -> Reply:
        if context.info["success"] or self.is_right(context.messages[-1]["content"], context.task):
            context.info["success"] = True
            return Reply(done=True)
        is_number = re.fullmatch(r"[0-9]{1,3}", context.messages[-1]["content"])
        is_lower = is_number and int(is_number[0]) < context.task.answer  # type: ignore[operator]
        return Reply(messages=({"role": "user", "content": "Higher." if is_lower else "Lower."},))

    def solve(self, task: Task) -> Iterator[Message]:
        low, high = 1, 9
        while True:
            told = yield say(str((low + high) // 2))  # type: ignore[misc]
            is_higher = told[0]["content"] == "Higher."
            low, high = ((low + high) // 2 + 1, high) if is_higher else (low, (low + high) // 2 - 1)


class Explained(Digits):
    """The answer is a record, and the oracle says more than the number."""

    max_turns = 1

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for task in super().tasks(split, seed):
            yield replace(task, answer={"game": task.task_id, "digit": task.answer})

    async def reply(self, context: EpisodeContext) -> Reply:
        context.info["success"] = context.messages[-1]["content"].endswith(f"#### {context.task.answer['digit']}")  # type: ignore[index,call-overload]
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message]:
        yield say(f"Once, in {task.task_id}: #### {task.answer['digit']}")  # type: ignore[index,call-overload]
