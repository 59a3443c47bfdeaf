"""Our own problems: every right solution is accepted, every wrong one refused, in every sandbox."""

from __future__ import annotations

import asyncio

import pytest
from problem_rows import OwnProblem, read_problems

from agentgym.sandbox import AssertCase, CallCase, GradeRequest, RunStatus, SandboxBackend, StdioCase, Verdict
from agentgym_sandboxes.docker.backend import DockerBackend
from tests.sandboxes.conftest import BACKENDS

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

PROBLEMS = read_problems()
RARELY = [pytest.mark.hostile, pytest.mark.xdist_group("problems")]  # it grades as bubblewrap does; none is an attack
SANDBOXES = [*BACKENDS[:-1], pytest.param(BACKENDS[-1], marks=RARELY)]
NOTHING = "def {entry}(*arguments, **named):\n    return None\n"


async def test_there_are_enough_problems_of_every_kind() -> None:
    cases = [case for problem in PROBLEMS for case in problem.cases]
    assert len(PROBLEMS) >= 40 and all(problem.wrong for problem in PROBLEMS)
    assert any(isinstance(case, AssertCase) for case in cases)
    assert any(isinstance(case, StdioCase) for case in cases)
    calls = [case for case in cases if isinstance(case, CallCase)]
    assert any(case.expected_args for case in calls) and any(case.as_list for case in calls)
    assert any("." in problem.entry for problem in PROBLEMS)


@pytest.mark.parametrize("backend", SANDBOXES, indirect=True)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
async def test_right_solutions_pass_and_wrong_ones_fail(backend: SandboxBackend, problem: OwnProblem) -> None:
    nothing = "" if isinstance(problem.cases[0], StdioCase) else NOTHING.format(entry=problem.entry.split(".")[0])
    wrong = (*problem.wrong, nothing, "")
    grades = (backend.grade(problem.request(code)) for code in (problem.canonical, *wrong))
    right_verdict, *verdicts = await asyncio.gather(*grades)
    if right_verdict.status is RunStatus.UNSUPPORTED and not (await backend.probe()).full_python:
        pytest.skip(f"{backend.name}: {right_verdict.error}")
    assert right_verdict.passed, right_verdict
    for code, verdict in zip(wrong, verdicts, strict=True):
        assert not verdict.passed, (code, verdict)
        assert len(verdict.results) == len(problem.cases)
        assert all(result.passed or 0 < len(result.error) < 1000 for result in verdict.results), verdict


@pytest.mark.slow
async def test_no_verdict_wavers_at_eight_at_once(docker: DockerBackend) -> None:
    turns = asyncio.Semaphore(8)

    async def one(request: GradeRequest) -> Verdict:
        async with turns:
            return await docker.grade(request)

    requests = [problem.request(code) for problem in PROBLEMS for code in (problem.canonical, *problem.wrong)]
    right = [code == problem.canonical for problem in PROBLEMS for code in (problem.canonical, *problem.wrong)]
    verdicts = [await asyncio.gather(*map(one, requests)) for _ in range(2)]
    for verdicts_once in verdicts:
        assert [verdict.passed for verdict in verdicts_once] == right
    assert [verdict.results for verdict in verdicts[0]] == [verdict.results for verdict in verdicts[1]]
