"""Measures for how long at least one call of each kind was in flight, and any call at all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Activity:
    """Measures unions of intervals, not sums: ten calls at the same time for one second count as one second."""

    def __init__(self) -> None:
        self._since: defaultdict[str, dict[object, float]] = defaultdict(dict)  # kind -> call -> its start
        self._total_s: defaultdict[str, float] = defaultdict(float)
        self._at = self._changed_at = time.monotonic()

    @contextmanager
    def doing(self, kind: str) -> Iterator[None]:
        """Count the time inside this block as `kind`."""
        self._advance()
        call = object()
        self._since[kind][call] = self._changed_at = self._at
        try:
            yield
        finally:
            self._advance()
            del self._since[kind][call]
            self._changed_at = self._at

    def in_flight(self) -> dict[str, list[float]]:
        """For how long each call that is under way has run, in seconds, by kind."""
        now = time.monotonic()
        return {kind: [now - at for at in calls.values()] for kind, calls in self._since.items() if calls}

    def silence_s(self) -> float:
        """Seconds since a call began or ended."""
        return time.monotonic() - self._changed_at

    def totals_s(self) -> dict[str, float]:
        """Seconds since the start by kind; `any` is the union of all kinds, `wall` is the clock."""
        self._advance()
        return dict(self._total_s)

    def _advance(self) -> None:
        now = time.monotonic()
        passed = now - self._at
        self._at = now
        self._total_s["wall"] += passed
        active = [kind for kind, calls in self._since.items() if calls]
        for kind in active:
            self._total_s[kind] += passed
        if active:
            self._total_s["any"] += passed


def since(now_s: dict[str, float], before_s: dict[str, float]) -> dict[str, float]:
    """The seconds that passed between two readings of `totals_s`."""
    return {kind: total - before_s.get(kind, 0.0) for kind, total in now_s.items()}
