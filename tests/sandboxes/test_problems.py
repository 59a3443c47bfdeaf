"""Our own problems: every right solution is accepted, every wrong one refused, in every sandbox."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from problem_rows import OwnProblem, read_problems

from agentgym.sandbox import AssertCase, CallCase, GradeRequest, RunStatus, SandboxBackend, StdioCase, Verdict
from agentgym_sandboxes.docker.backend import DockerBackend

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

PROBLEMS = read_problems()
CANONICAL = Path(__file__).parent.parent.parent / "benchmarks" / "canonical.py"
DATA = Path(__file__).parent.parent / "data"
NOTHING = "def {entry}(*arguments, **named):\n    return None\n"


async def test_there_are_enough_problems_of_every_kind() -> None:
    cases = [case for problem in PROBLEMS for case in problem.cases]
    assert len(PROBLEMS) >= 40 and all(problem.wrong for problem in PROBLEMS)
    assert any(isinstance(case, AssertCase) for case in cases)
    assert any(isinstance(case, StdioCase) for case in cases)
    calls = [case for case in cases if isinstance(case, CallCase)]
    assert any(case.expected_args for case in calls) and any(case.as_list for case in calls)
    assert any("." in problem.entry for problem in PROBLEMS)


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


@pytest.mark.parametrize(
    ("shape", "solution", "wrong"),
    [("humaneval", "canonical_solution", "    pass\n"), ("mbpp", "code", "def pad(*a): pass")],
)
async def test_the_script_accepts_canonical_solutions_and_nothing_else(
    tmp_path: Path, engine: str, shape: str, solution: str, wrong: str
) -> None:
    """On our own rows of these shapes; the last one's solution is then made wrong."""

    def grade(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(CANONICAL), str(path), "--json"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    shaped = DATA / f"{shape}_shaped.jsonl"
    rows = [json.loads(line) for line in shaped.read_text().splitlines()]
    done = grade(shaped)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 4 * len(rows)
    rows[-1][solution] = wrong
    broken = tmp_path / "broken.jsonl"
    broken.write_text("\n".join(json.dumps(row) for row in rows))
    done = grade(broken)
    assert done.returncode == 1
    assert [one["kind"] for one in json.loads(done.stdout) if not one["right"]] == ["canonical"]
    assert grade(tmp_path / "missing.jsonl").returncode == 2
