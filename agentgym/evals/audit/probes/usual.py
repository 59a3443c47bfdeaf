"""The answer that is right most often, in every task."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "the most frequent right answer, in every task"
FIGURE_ONLY = frozenset({"usual"})  # of yes and no, one is right half the time: it belongs to the floor
MAX_TASKS: int | None = None


def variants(attempt: Attempt) -> Iterator[Script]:
    if attempt.usual:
        yield "usual", always(attempt.usual)
