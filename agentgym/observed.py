"""Numbers that code in any process of a run records: `record_metric("tool/retries", 1, "sum")`."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from agentgym.errors import UserError, nearest


class Reduce(StrEnum):
    """What becomes of all values of a metric that a step has."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    STD = "std"


class State(NamedTuple):
    """The values of a metric so far. deviations: the sum of their squared distances from their mean."""

    name: str
    reduction: str
    num_values: int
    total: float
    deviations: float
    largest: float
    smallest: float


@dataclass(slots=True)
class Observed:
    """What one process has recorded, until it is taken. readers: runtimes of this process, whose run takes it here."""

    readers: int = 0
    _states: dict[str, State] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, state: State) -> None:
        """Raises UserError for a name that has another reduction."""
        with self._lock:
            before = self._states.get(state.name)
            if before is not None and before.reduction != state.reduction:
                both = f"{before.reduction} and as {state.reduction}"
                raise UserError(f"the metric {state.name!r} is recorded as {both}; give each a name")
            self._states[state.name] = state if before is None else _both(before, state)

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
            before = self._states.get(state.name)
            if before is None or before.reduction == state.reduction:
                self.add(state)

    def values(self) -> dict[str, float]:
        """The metrics since the last time."""
        return {state.name: _reduced(state) for state in self.take()}


def record_metric(name: str, value: float, reduction: Reduce | str = Reduce.MEAN) -> None:
    """Record a value in any process of a run: the step's metrics have it, reduced, under this name.

    value: a number, or what `float` makes one of. It travels with the next answer of an actor, so a step's last values
    may count for the next step. Raises UserError for an unknown reduction, and a name that has another one.
    """
    if reduction not in [*Reduce]:
        raise UserError(f"record_metric: no reduction {reduction!r}.{nearest(str(reduction), [*Reduce])}")
    number = float(value)
    OBSERVED.add(State(name, str(reduction), 1, number, 0.0 * number, number, number))  # nan stays nan


OBSERVED = Observed()
"""Of this process."""


def _both(one: State, other: State) -> State:
    """Of all values. Sums of squares would lose what is small beside the mean (Chan et al. 1979)."""
    count = one.num_values + other.num_values
    apart = other.total / other.num_values - one.total / one.num_values
    return State(
        one.name,
        one.reduction,
        count,
        one.total + other.total,
        one.deviations + other.deviations + apart * apart * one.num_values * other.num_values / count,
        max(one.largest, other.largest),
        min(one.smallest, other.smallest),
    )


def _reduced(state: State) -> float:
    match state.reduction:
        case Reduce.SUM:
            return state.total
        case Reduce.MAX:
            return state.largest
        case Reduce.MIN:
            return state.smallest
        case Reduce.STD:
            return math.sqrt(state.deviations / state.num_values)
    return state.total / state.num_values
