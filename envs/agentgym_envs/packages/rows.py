"""Rows of a package's tasks: their order, which of them are held out, and their prompts; and what it gives for one."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.types import Message, Split

TEST_ONE_IN: Final = 5  # rows that are held out where the package has none of its own for that
FEW_ROWS: Final = 200  # of which exactly one in five is held out, and at least one
MAX_FRUITLESS: Final = 2000  # rows of an endless package in a row without one of the split
RANGE_SLACK: Final = 1e-6  # rewards are sums of floats


class Row(NamedTuple):
    """prompt: messages, a text or None. digest: a number that is made of all that is in it."""

    number: int
    prompt: Any
    digest: int


Rows: TypeAlias = Iterator[Row]


def numbers_of(size: int | None, seed: int | None) -> Iterator[int]:
    """Rows in the package's order, or shuffled by a seed; without an end where the package has none."""
    if size is None:
        return itertools.count()
    numbers = [*range(size)]
    if seed is not None:
        random.Random(seed).shuffle(numbers)
    return iter(numbers)


def rows_of_split(rows: Rows, split: Split, size: int | None) -> Rows:
    """The rows that belong to the split, by what is in them, so that equal rows are in one split: every fifth."""
    if size is not None and size <= FEW_ROWS:
        found = [*rows]
        last = sorted(row.digest for row in found)[max(1, size // TEST_ONE_IN) - 1]
        yield from (row for row in found if (row.digest <= last) == (split == "test"))
        return
    fruitless = 0
    for row in rows:
        fruitless += 1
        if (row.digest % TEST_ONE_IN == 0) == (split == "test"):
            fruitless = 0
            yield row
        if size is None and fruitless == MAX_FRUITLESS:
            return


def messages_of(prompt: Sequence[Mapping[str, Any]] | str | None) -> tuple[Message, ...]:
    """A prompt as text: parts that are none are named."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    return tuple(Message(role=one["role"], content=_text(one.get("content"))) for one in prompt or ())


def checked_reward(given: object, name: str, low: float, high: float) -> float:
    """Raises InfraError for what is no finite number, UserError for one outside of the range of the options."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise InfraError(f"{name} gave the reward {given!r}; a finite number was expected")
    if not low - RANGE_SLACK <= given <= high + RANGE_SLACK:
        raise UserError(
            f"{name} gave the reward {given:g}, outside of {low:g} to {high:g}; give the range as env.options.low and "
            "env.options.high"
        )
    return float(given)


def finite_of(metrics: Mapping[str, object]) -> dict[str, float]:
    """The metrics that are finite numbers."""
    return {
        str(name): value for name, value in metrics.items() if isinstance(value, int | float) and math.isfinite(value)
    }


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)
    return "" if content is None else str(content)
