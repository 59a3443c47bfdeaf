"""All trials."""

from __future__ import annotations

from agentgym.evals.containment.snippet import Trial


def all_trials() -> tuple[Trial, ...]:
    """The hostile snippets, then the reward hacks; names are unique."""
    return ()
