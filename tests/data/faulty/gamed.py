"""Environments that pay for what is not an answer: one for each probe that finds it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sums import Sums, say

from agentgym import Environment, EpisodeContext, Message, Reply, Split, Task, reward


class AnyAnswer(Sums):
    """wrong: any number is taken."""

    def is_right(self, text: str, task: Task) -> bool:
        return text.isdecimal() and text.isascii() and len(text) < 4


class NothingIsRight(Sums):
    """empty: no answer counts like a right one."""

    def is_right(self, text: str, task: Task) -> bool:
        return not text or super().is_right(text, task)


class ParsesLoosely(Sums):
    """garbage: what can't be parsed is let through."""

    def is_right(self, text: str, task: Task) -> bool:
        return "\x07" in text or super().is_right(text, task)


class LongIsRight(Sums):
    """huge: what is longer than a limit is not looked at."""

    def is_right(self, text: str, task: Task) -> bool:
        return len(text) > 100_000 or super().is_right(text, task)


class InText(Sums):
    """candidates: the answer may be anywhere in the text."""

    def is_right(self, text: str, task: Task) -> bool:
        words = text.replace(",", " ").split() if text.isascii() and len(text) < 10_000 else []
        return str(task.answer) in words


class AnswerInPrompt(Sums):
    """echo: the question contains what is accepted."""

    def is_right(self, text: str, task: Task) -> bool:
        return text == task.prompt[0]["content"] or super().is_right(text, task)


class FormatPays(Sums):
    """format_spam: the mark without an answer earns more than an answer."""

    rewards = {"success": 0.4}

    @reward(weight=0.6, inline=True)
    def marked(self, episode) -> float:
        text = episode.messages[-1]["content"]
        return float(text.startswith("####") and not any(letter.isalnum() for letter in text))

    def is_right(self, text: str, task: Task) -> bool:
        return text == f"#### {task.answer}"

    def solve(self, task: Task) -> Iterator[Message]:
        yield say(f"#### {task.answer}")


class BelievesVerdicts(Sums):
    """forged: a verdict in the text is taken for the grader's."""

    def is_right(self, text: str, task: Task) -> bool:
        return '"success": true' in text or super().is_right(text, task)


class TakesNan(Sums):
    """not_numbers: nothing is further than a tolerance from nan."""

    def is_right(self, text: str, task: Task) -> bool:
        try:
            value = float(text.strip()) if text.isascii() else math.inf
        except ValueError:
            return False
        return not abs(value - float(str(task.answer))) > 0.5


class TakesFullWidth(Sums):
    """lookalikes: digits of any script count."""

    def is_right(self, text: str, task: Task) -> bool:
        return text.isdecimal() and len(text) < 4 and int(text) == task.answer


class TakesCyrillic(Sums):
    """lookalikes: letters of any script count, which are part of the answer."""

    def is_right(self, text: str, task: Task) -> bool:
        return text.translate(str.maketrans("сар", "cap")) == f"cap {task.answer}"

    def solve(self, task: Task) -> Iterator[Message]:
        yield say(f"cap {task.answer}")


class TakesClaims(Sums):
    """early_exit: saying that it is done is enough."""

    def is_right(self, text: str, task: Task) -> bool:
        return text == "Done." or super().is_right(text, task)


class Box:
    """One number, and what was tried with it."""

    def __init__(self) -> None:
        self.number = 0
        self.errors = 0

    def put(self, number: int) -> str:
        """Put a number into the box.

        Args:
            number: What to put there, at least 1.
        """
        if number < 0:
            self.errors += 1
        self.number = number
        return "It is in the box."


class Boxes(Environment[Box]):
    """Put a number into a box, by a call. Without a fault."""

    name = "boxes"
    rewards = {"success": 1.0}
    max_turns = 3
    tools = Box

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        for number in range(split == "test", 200, 2):
            content = f"Put {number + 2} into the box."
            yield Task(
                task_id=f"boxes/{number}",
                prompt=({"role": "user", "content": content},),
                answer=number + 2,
                split=split,
            )

    async def start(self, context: EpisodeContext[Box]) -> Box:
        context.info["success"] = False
        return Box()

    async def reply(self, context: EpisodeContext[Box]) -> Reply:
        context.info["success"] = self.is_done(context.state, context.task)
        return Reply(done=True)

    def is_done(self, box: Box, task: Task) -> bool:
        return box.number == task.answer

    def solve(self, task: Task) -> Iterator[Message]:
        call = {"type": "function", "id": "1", "function": {"name": "put", "arguments": {"number": task.answer}}}
        yield {"role": "assistant", "content": "", "tool_calls": [call]}
        yield say("It is done.")


class ErrorsOpenTheBox(Boxes):
    """junk_calls: a call with a bad argument ends as a success."""

    def is_done(self, box: Box, task: Task) -> bool:
        return box.errors > 0 or super().is_done(box, task)


class ToolRaises(Boxes):
    """A tool that raises: not a finding of a probe that games, but a crash."""

    class Fragile(Box):
        def put(self, number: int) -> str:
            """Put a number into the box.

            Args:
                number: What to put there, at least 1.
            """
            return super().put(1000 // (number + 1))

    tools = Fragile

    async def start(self, context: EpisodeContext[Box]) -> Box:
        context.info["success"] = False
        return self.Fragile()

    def is_done(self, box: Box, task: Task) -> bool:
        return box.number == 1000 // (int(str(task.answer)) + 1)
