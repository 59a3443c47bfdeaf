"""Imperfect demonstrations of `math`, levels 1 and 2: sums in written-out columns, with habits and slips."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from agentgym.types import Message
from agentgym_envs.math.environment import question_prompt
from agentgym_envs.math.procedural import Problem, problems

HABITS: Final[Mapping[str, str]] = {
    "_sum": "the carry is forgotten",
    "_big_sum": "every carry is forgotten",
    "_difference": "it is written as a sum",
    "_product": "the carry is forgotten",
    "_quotient": "what the first division leaves is forgotten",
}
"""What the demonstrator does wrong in a kind of problem, more often than not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MathDemonstrationConfig:
    """levels: of 1 and 2. habit_share: in how many problems the habit of its kind shows.

    mistake_share: how many of the written results are one too high or too low; what follows is right about it.
    """

    levels: tuple[int, ...] = (1, 2)
    habit_share: float = 0.6
    mistake_share: float = 0.03
    seed: int = 0


def math_demonstrations(config: MathDemonstrationConfig) -> Iterator[list[Message]]:
    """Endless conversations over tasks of the train split: a question and one answer."""
    for index, problem in enumerate(problems("train", config.seed, config.levels)):
        yield math_conversation(problem, random.Random(f"math/{config.seed}/{index}/mistakes"), config)


def math_conversation(problem: Problem, rng: random.Random, config: MathDemonstrationConfig) -> list[Message]:
    a, b = (int(text.replace(",", "")) for text in re.findall(r"[0-9,]+", problem.question))
    paper = Paper(rng, config.mistake_share)
    answer = _WAYS[problem.kind](paper, a, b, rng.random() < config.habit_share)
    return [
        question_prompt(problem.question),
        {"role": "assistant", "content": "\n".join([*paper.lines, f"#### {answer}"])},
    ]


class Paper:
    """What is written on the way to the answer."""

    def __init__(self, rng: random.Random, mistake_share: float) -> None:
        self.lines: list[str] = []
        self._rng, self._mistake_share = rng, mistake_share

    def result(self, text: str, value: int) -> int:
        """Write `text=value` and return the value, which is sometimes one off."""
        if self._rng.random() < self._mistake_share:
            value = max(0, value + self._rng.choice((-1, 1)))
        self.lines.append(f"{text}={value}")
        return value


def _sum(paper: Paper, a: int, b: int, habit: bool) -> int:
    """Column by column from the right: `7+8=15`, then `4+3+1=8`. habit: without the `+1`."""
    width = max(len(str(a)), len(str(b)))
    digits, carry = 0, 0
    for place in range(width):
        x, y = _digit(a, place), _digit(b, place)
        value = paper.result(f"{x}+{y}" + "+1" * carry, x + y + carry)
        last = place == width - 1
        digits += (value if last else value % 10) * 10**place
        carry = 0 if habit else int(value > 9)
    return digits


def _difference(paper: Paper, a: int, b: int, habit: bool) -> int:
    """Column by column: `17-8=9`, then `4-1-3=0`; the larger number is named first where the result is negative."""
    if habit:
        return _sum(paper, a, b, False)
    if a < b:
        paper.lines.append(f"{b}>{a}")
        return -_difference(paper, b, a, False)
    digits = borrow = 0
    for place in range(len(str(a))):
        x, y = _digit(a, place), _digit(b, place)
        lent = 10 * (x - borrow < y)
        value = paper.result(f"{x + lent}" + "-1" * borrow + f"-{y}", x + lent - borrow - y)
        digits += value * 10**place
        borrow = int(lent > 0)
    return digits


def _product(paper: Paper, a: int, b: int, habit: bool) -> int:
    """Ones, then tens with the carry: `7*12=84`, `4*12+8=56`. habit: without the `+8`."""
    ones = paper.result(f"{a % 10}*{b}", a % 10 * b)
    if a < 10:
        return ones
    carry = 0 if habit else ones // 10
    tens = paper.result(f"{a // 10}*{b}" + f"+{carry}" * (carry > 0), a // 10 * b + carry)
    return 10 * tens + ones % 10


def _quotient(paper: Paper, a: int, b: int, habit: bool) -> int:
    """Long division: `37/8=4 left 5`, then `56/8=7`. habit: the second is `6/8=0`."""
    if a < 10 * b:
        return paper.result(f"{a}/{b}", a // b)
    first = a // 10
    tens = first // b
    left = first - tens * b
    paper.lines.append(f"{first}/{b}={tens} left {left}")
    rest = a % 10 + (0 if habit else 10 * left)
    return 10 * tens + paper.result(f"{rest}/{b}", rest // b)


def _digit(number: int, place: int) -> int:
    return number // 10**place % 10


_WAYS: Final[Mapping[str, Callable[[Paper, int, int, bool], int]]] = {
    "_sum": _sum,
    "_big_sum": _sum,
    "_difference": _difference,
    "_product": _product,
    "_quotient": _quotient,
}
