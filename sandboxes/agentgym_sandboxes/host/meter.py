"""Counts a sandbox's calls and the times they took, for the run's metrics."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Collection, Iterator, Mapping

from agentgym.errors import InfraError
from agentgym.sandbox import RunStatus

WINDOW = 2048  # of the latest values, that percentiles are taken over
CALLS_FAILED = "calls_failed_total"  # calls that got no answer, because the sandbox failed


class Spread:
    """The latest values of a time, in seconds."""

    def __init__(self) -> None:
        self._values: collections.deque[float] = collections.deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        self._values.append(value)

    def metrics(self, name: str) -> dict[str, float]:
        """The median and the 95th percentile, by nearest rank; nothing before the first value."""
        if not self._values:
            return {}
        return {f"{name}_p{percent}_s": nearest_rank(self._values, percent) for percent in (50, 95)}


class CallMeter:
    """What every backend measures.

    queue: a call's wait for a slot, or a session's for a sandbox, successful or not. wall: a call's time in the
    sandbox. start: of a sandbox, until it takes calls. engine: of a request to the engine, where there is one.
    counts: whatever else, by the metric's name without its area, as `oom_kills_total`.
    """

    def __init__(self) -> None:
        self.queue, self.wall, self.start, self.engine = Spread(), Spread(), Spread(), Spread()
        self.counts: collections.Counter[str] = collections.Counter({CALLS_FAILED: 0})
        self._statuses: collections.Counter[RunStatus] = collections.Counter()

    def answered(self, status: RunStatus, *, queue_s: float | None, wall_s: float) -> None:
        """One call that was answered. queue_s: None for a session's, which waited when the session began."""
        self._statuses[status] += 1
        if queue_s is not None:
            self.queue.add(queue_s)
        self.wall.add(wall_s)

    @contextlib.contextmanager
    def counting_failures(self) -> Iterator[None]:
        """Count the call inside when it is the sandbox that fails."""
        try:
            yield
        except InfraError:
            self.counts[CALLS_FAILED] += 1
            raise

    def metrics(self, gauges: Mapping[str, float] | None = None) -> dict[str, float]:
        """All as `sandbox/<what>_<unit>`. gauges: what is true now, by the metric's name without its area."""
        found = {
            "sandbox/calls_total": float(self._statuses.total()),
            **{f"sandbox/calls_{status}_total": float(self._statuses[status]) for status in RunStatus},
        }
        for name in ("queue", "wall", "start", "engine"):
            found.update(getattr(self, name).metrics(f"sandbox/{name}"))
        found.update({f"sandbox/{name}": float(count) for name, count in sorted(self.counts.items())})
        found.update({f"sandbox/{name}": float(value) for name, value in (gauges or {}).items()})
        return found


def nearest_rank(values: Collection[float], percent: int) -> float:
    """A percentile: the smallest value that so many percent of all are not above. At least one value."""
    return sorted(values)[-(-percent * len(values) // 100) - 1]
