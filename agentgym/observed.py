"""Numbers that code in any process of a run records: `record_metric("tool/retries", 1, "sum")`."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from agentgym.errors import UserError, nearest


class Reduce(StrEnum):
    """What becomes of all values of a metric that a step has."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    STD = "std"


State: TypeAlias = tuple[str, str, int, float, float, float, float]
"""Name and reduction; of the values: how many, their sum, the sum of their squares, the largest, the smallest."""


@dataclass(slots=True)
class Observed:
    """What one process has recorded, until it is taken. readers: runtimes of this process, whose run takes it here."""

    readers: int = 0
    _states: dict[str, State] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, state: State) -> None:
        """Raises UserError for a name that has another reduction."""
        name, reduction, *_ = state
        with self._lock:
            before = self._states.get(name)
            if before is not None and before[1] != reduction:
                raise UserError(f"the metric {name!r} is recorded as {before[1]} and as {reduction}; give each a name")
            self._states[name] = state if before is None else _both(before, state)

    def take(self) -> list[State]:
        """What was recorded since the last time."""
        if not self._states:
            return []
        with self._lock:
            states, self._states = self._states, {}
        return [*states.values()]

    def to_send(self) -> list[State]:
        """What an answer takes along."""
        return [] if self.readers else self.take()

    def absorb(self, states: Iterable[State]) -> None:
        """Of another process. A name that has another reduction here is left out."""
        for state in states:
            before = self._states.get(state[0])
            if before is None or before[1] == state[1]:
                self.add(state)

    def values(self) -> dict[str, float]:
        """The metrics since the last time."""
        return {state[0]: _reduced(state) for state in self.take()}


def record_metric(name: str, value: float, reduction: Reduce | str = Reduce.MEAN) -> None:
    """Record a value in any process of a run: the step's metrics have it, reduced, under this name.

    value: a number, or what `float` makes one of. It travels with the next answer of an actor, so a step's last values
    may count for the next step. Raises UserError for an unknown reduction, and a name that has another one.
    """
    if reduction not in [*Reduce]:
        raise UserError(f"record_metric: no reduction {reduction!r}.{nearest(str(reduction), [*Reduce])}")
    number = float(value)
    OBSERVED.add((name, str(reduction), 1, number, number * number, number, number))


OBSERVED = Observed()
"""Of this process."""


def _both(one: State, other: State) -> State:
    name, reduction, count, total, squares, largest, smallest = one
    return (
        name,
        reduction,
        count + other[2],
        total + other[3],
        squares + other[4],
        max(largest, other[5]),
        min(smallest, other[6]),
    )


def _reduced(state: State) -> float:
    _, reduction, count, total, squares, largest, smallest = state
    match reduction:
        case Reduce.SUM:
            return total
        case Reduce.MAX:
            return largest
        case Reduce.MIN:
            return smallest
        case Reduce.STD:
            return math.sqrt(max(squares / count - (total / count) ** 2, 0.0))  # in this order nan stays
    return total / count
