"""What the agent is told after a failing attempt: about visible cases only."""

from __future__ import annotations

from agentgym.sandbox import CallCase, CaseResult, RunStatus, Verdict
from agentgym.types import Json
from agentgym_envs.code_exec.problems import Problem, call_text

_WHOLE = {
    RunStatus.TIMEOUT: "the code took too long",
    RunStatus.OOM: "the code used too much memory",
    RunStatus.OUTPUT_LIMIT: "the code printed too much",
}


def feedback(problem: Problem, verdict: Verdict, limit: int) -> str | None:
    """The first visible failure, at most `limit` characters; None when all visible cases passed.

    Nothing in it comes from a hidden case: the verdict's own error is told only while no visible case was
    judged, and it is then about the code as a whole, before any case.
    """
    visible = verdict.results[: len(problem.visible)]
    for case, result in zip(problem.visible, visible, strict=True):
        if result.passed:
            continue
        if not result.error:
            break  # not reached: the code as a whole failed
        if isinstance(case, CallCase):
            return _cut(call_feedback(problem.entry, case, result), limit)
        return _cut(f"{case.source.strip()} failed: {result.error}", limit)
    if all(result.passed for result in visible):
        return None
    if any(result.passed for result in visible):
        return _cut(_WHOLE.get(verdict.status, "the code failed in an example"), limit)
    return _cut(_WHOLE.get(verdict.status, verdict.error or "the code failed"), limit)


def call_feedback(entry: str, case: CallCase, result: CaseResult) -> str:
    """`f([3, 1]) returned [1, 3], expected [3, 1]`, or `f([]) raised ZeroDivisionError: …`."""
    verb = "" if result.error.startswith("returned ") else "raised "
    return f"{call_text(entry, case)} {verb}{result.error}"


def verdict_record(problem: Problem, verdict: Verdict) -> Json:
    """What is saved with the episode for a person to read."""
    visible = len(problem.visible)
    return {
        "status": verdict.status.value,
        "visible_passed": sum(result.passed for result in verdict.results[:visible]),
        "visible": visible,
        "hidden_passed": sum(result.passed for result in verdict.results[visible:]),
        "hidden": len(problem.hidden),
        "error": verdict.error,
        "wall_s": round(verdict.wall_s, 6),
    }


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
