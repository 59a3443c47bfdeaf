"""Nothing at all."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "nothing, and white space"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None


def variants(attempt: Attempt) -> Iterator[Script]:
    yield "nothing", always("")
    yield "white space", always(" \n\t\u00a0\n")
