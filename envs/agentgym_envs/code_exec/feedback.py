"""What the agent is told after a failing attempt: about visible cases only."""

from __future__ import annotations

from agentgym.sandbox import CallCase, Case, CaseResult, StdioCase, Verdict
from agentgym.types import Json
from agentgym_envs.code_exec.problems import Problem, call_text

MAX_INPUT_CHARS = 80  # of a program's input that are repeated to the agent


def feedback(problem: Problem, verdict: Verdict, limit: int) -> str | None:
    """The first visible failure, at most `limit` characters; None when all visible cases passed.

    It holds what the sandbox said of that one case, and nothing of the hidden ones.
    """
    for case, result in zip(problem.visible, verdict.results, strict=False):
        if not result.passed:
            as_whole = result.error and result.error == verdict.error  # no fault of this case
            text = verdict.error if as_whole else case_feedback(problem.entry, case, result)
            return text if len(text) <= limit else text[: limit - 1] + "…"
    return None


def case_feedback(entry: str, case: Case, result: CaseResult) -> str:
    """`f([3, 1]) returned [1, 3], expected [3, 1]`, or `f([]) raised ZeroDivisionError: …`."""
    error = result.error or "failed"
    if isinstance(case, CallCase):
        return f"{call_text(entry, case)} {error}"
    if isinstance(case, StdioCase):
        given = case.stdin.rstrip()
        given = given if len(given) <= MAX_INPUT_CHARS else given[: MAX_INPUT_CHARS - 1] + "…"
        return f"On input {given!r} the program {error}"
    if error.startswith("assertion failed"):  # the rest of that error repeats the source
        return f"{case.source.strip()} failed"
    return f"{case.source.strip()} {error}"


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
