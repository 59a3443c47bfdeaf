"""Measures for how long at least one call of each kind was in flight, and any call at all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from agentgym.rollout.deadlines import Deadlines


class Activity:
    """Measures unions of intervals, not sums: ten calls at the same time for one second count as one second.

    deadlines: of the calls that wait for a generator.
    """

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self._since: defaultdict[str, dict[object, float]] = defaultdict(dict)  # kind -> call -> its start
        self._total_s: defaultdict[str, float] = defaultdict(float)  # of each kind, to its last change to or from idle
        self._busy_since: dict[str, float] = {}  # of the kinds with a call in flight, and of `any`
        self._num_busy = 0
        self._began = self._changed_at = time.monotonic()

    def begin(self, kind: str) -> object:
        """A call of this kind begins; `end` takes what is returned."""
        self._changed_at = now = time.monotonic()
        calls = self._since[kind]
        if not calls:
            self._busy_since[kind] = now
            if not self._num_busy:
                self._busy_since["any"] = now
            self._num_busy += 1
        call = object()
        calls[call] = now
        return call

    def end(self, kind: str, call: object) -> None:
        """The call has ended."""
        self._changed_at = now = time.monotonic()
        calls = self._since[kind]
        del calls[call]
        if not calls:
            self._total_s[kind] += now - self._busy_since.pop(kind)
            self._num_busy -= 1
            if not self._num_busy:
                self._total_s["any"] += now - self._busy_since.pop("any")

    @contextmanager
    def doing(self, kind: str) -> Iterator[None]:
        """Count the time inside this block as `kind`."""
        call = self.begin(kind)
        try:
            yield
        finally:
            self.end(kind, call)

    def in_flight(self) -> dict[str, list[float]]:
        """The age of each call in flight, in seconds, by kind."""
        now = time.monotonic()
        return {kind: [now - at for at in calls.values()] for kind, calls in self._since.items() if calls}

    def silence_s(self) -> float:
        """Seconds since a call began or ended."""
        return time.monotonic() - self._changed_at

    def totals_s(self) -> dict[str, float]:
        """Seconds since the start by kind; `any` is the union of all kinds, `wall` is the clock."""
        now = time.monotonic()
        totals = {**self._total_s, "wall": now - self._began}
        for kind, since in self._busy_since.items():
            totals[kind] = totals.get(kind, 0.0) + now - since
        return totals


def since(now_s: dict[str, float], before_s: dict[str, float]) -> dict[str, float]:
    """The seconds that passed between two readings of `totals_s`."""
    return {kind: total - before_s.get(kind, 0.0) for kind, total in now_s.items()}
