"""Code graded in a sandbox, and what went wrong case by case."""

from __future__ import annotations

import pytest

from agentgym.sandbox import AssertCase, Case, GradeRequest, Limits, RunStatus, SandboxBackend, Verdict

LIMITS = Limits(wall_s=20.0)


async def judged(
    backend: SandboxBackend,
    code: str,
    *cases: Case | str,
    entry: str = "f",
    prelude: str = "",
    limits: Limits = LIMITS,
    everywhere: bool = False,
) -> Verdict:
    """The verdict; a string is an assertion. Skips where the interpreter says that it can't run this.

    everywhere: none may say so.
    """
    made = tuple(AssertCase(source=case) if isinstance(case, str) else case for case in cases)
    request = GradeRequest(code=code, entry=entry, cases=made, prelude=prelude, limits=limits)
    verdict = await backend.grade(request)
    if verdict.status is RunStatus.UNSUPPORTED:
        assert backend.name == "monty" and not everywhere and not any(result.passed for result in verdict.results)
        pytest.skip(verdict.error)
    return verdict


def errors(verdict: Verdict) -> list[str]:
    assert all(result.passed == (not result.error) for result in verdict.results)
    return [result.error for result in verdict.results]
