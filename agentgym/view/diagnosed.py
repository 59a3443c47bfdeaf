"""The sentence about a run: is it learning, and what is wrong if not."""

from __future__ import annotations

from typing import Any

from agentgym.view.run import Run

MISSING = "this version of agentgym says nothing about a run's health yet"


def diagnosis(run: Run) -> dict[str, Any]:
    """verdict: learning, not_learning, unclear, broken or unknown. missing: why there is no sentence."""
    return {"verdict": "unknown", "sentence": "", "problems": [], "missing": MISSING}
