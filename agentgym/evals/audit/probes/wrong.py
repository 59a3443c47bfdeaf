"""Another task's right answer."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, replayed

WHAT = "another task's right answer"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None


def variants(attempt: Attempt) -> Iterator[Script]:
    for place, other in enumerate(attempt.others[:2]):
        yield f"neighbour {place + 1}", replayed(other)
