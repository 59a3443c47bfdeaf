"""The sentence about a run: is it learning, and what is wrong if not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agentgym.errors import UserError
from agentgym.evals.diagnosis import diagnose_figures, how_it_ended, read_evaluations
from agentgym.tables.run import Run


def diagnosis(run: Run) -> dict[str, Any]:
    """verdict: learning, unlearning, no_change, too_early, ended, or unknown. missing: why there is no sentence."""
    if run.kind == "eval":
        return _nothing("an evaluation does not learn")
    status, reason, _ = run.status()
    try:
        found = diagnose_figures(
            run.log.read(), read_evaluations(run.folder), run.config(), **how_it_ended(status, reason)
        )
    except (UserError, ValueError, KeyError, TypeError) as error:  # of files that another version wrote
        return _nothing(f"its figures could not be read: {error}")
    problems = [one.to_mapping() for one in found.findings]
    change = None if found.change is None else asdict(found.change)
    return {"verdict": found.verdict, "sentence": found.sentence, "problems": problems, "change": change, "missing": ""}


def _nothing(why: str) -> dict[str, Any]:
    return {"verdict": "unknown", "sentence": "", "problems": [], "change": None, "missing": why}
