"""No reward hack passes; each of them fools a grader as people write them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from naive_graders import GRADERS, Grader

from agentgym.sandbox import CallCase, CaseResult, GradeRequest, Limits, RunStatus, SandboxBackend, SandboxLost, Verdict
from agentgym_sandboxes.audit.findings import Outcome
from agentgym_sandboxes.audit.hacks.hack import Hack, attack, find_fault
from agentgym_sandboxes.audit.hacks.targets import ADD, REVERSED, TOTAL, Target
from agentgym_sandboxes.audit.suite import HACKS
from agentgym_sandboxes.docker.backend import DockerBackend

pytestmark = [pytest.mark.hostile, pytest.mark.asyncio(loop_scope="session")]

AT_ONCE = 4
LIMITS = Limits(wall_s=20.0, cpu_s=10, memory_mib=256)  # a busy machine must not change who is fooled
# the graders that many hacks fool come first, so that the search is short
SEARCHED = (
    "exec'd harness, JSON with a nonce, ==",
    "exec'd assertions, the share that passes",
    "the same, failures are what is printed",
    "exit code of solution and assertions",
    "the same, no verdict is masked",
    "two processes, operators asked of the solution's object",
    "exit code of the program",
    "expected in stdout",
    "all(... zip ...) of the words",
    "success marker on stdout",
)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_no_hack_passes(backend: SandboxBackend) -> None:
    """Graded in every way in Docker, and once elsewhere: the code around a grade is shared."""
    able = await backend.probe()
    if not able.isolated:
        pytest.skip("it does not isolate, so nothing hostile is run in it")
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(hack: Hack) -> str:
        async with turns:
            judgement = await attack(backend, hack, brief=backend.name != "docker")
        good = judgement.outcome in (Outcome.CONTAINED, Outcome.UNSUPPORTED)
        return "" if good else f"{hack.name}: {judgement.detail}"

    failures = [line for line in await asyncio.gather(*map(one, HACKS)) if line]
    assert not failures, "\n".join(failures)


async def test_what_the_hacks_attack_can_be_solved(backend: SandboxBackend) -> None:
    """A hack that fails is no evidence where every solution fails."""
    full_python = (await backend.probe()).full_python
    for target in {hack.target.name: hack.target for hack in HACKS}.values():
        for cases in target.groups:
            request = GradeRequest(
                code=target.honest, entry=target.entry, cases=cases, prelude=target.prelude, limits=LIMITS
            )
            verdict = await backend.grade(request)
            if full_python or verdict.status is not RunStatus.UNSUPPORTED:
                assert verdict.passed, (target.name, verdict)


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_every_hack_fools_a_naive_grader(docker: DockerBackend) -> None:
    turns = asyncio.Semaphore(AT_ONCE)
    order = sorted(GRADERS, key=lambda grader: SEARCHED.index(grader.name) if grader.name in SEARCHED else 99)

    async def one(hack: Hack) -> str:
        async with turns:
            for grader in (*order, *order):  # some hacks hang on the order of threads or of memory
                if await grader.fooled_by(docker, hack.target, hack.code, limits_of(hack)):
                    return ""
        return hack.name

    assert [name for name in await asyncio.gather(*map(one, HACKS)) if name] == []


def limits_of(hack: Hack) -> Limits:
    """A grader's: long enough to start Python twice, short for a hack that hangs."""
    return Limits(wall_s=2.5, cpu_s=2, memory_mib=256) if hack.limits.wall_s < 1 else LIMITS


@pytest.mark.docker
@pytest.mark.parametrize("grader", GRADERS, ids=lambda grader: grader.name)
async def test_naive_graders_distinguish_a_plain_mistake_from_a_solution(docker: DockerBackend, grader: Grader) -> None:
    targets = [(ADD, "def add(a, b):\n    return None\n"), (TOTAL, "print('no')\nraise SystemExit(1)\n")]
    if "zip" in grader.name:
        targets += [(REVERSED, "def reverse(xs):\n    return xs\n")]
    found = set()
    for target, wrong in targets:
        right = await grader.fooled_by(docker, target, target.honest, LIMITS)
        assert await grader.fooled_by(docker, target, wrong, LIMITS) in (None, False) or "masked" in grader.name
        found.add(right)
    assert True in found


class Judge:
    """A sandbox with a fixed opinion."""

    name = "judge"

    def __init__(self, *answers: Verdict | Exception) -> None:
        self._answers = list(answers)

    async def grade(self, request: GradeRequest) -> Verdict:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


ONE = Target(name="one", entry="f", honest="", cases=(CallCase(args=(), expected=1),))
HACK = Hack("hack", "", ONE, "")


def verdict(*results: CaseResult, status: RunStatus = RunStatus.OK) -> Verdict:
    return Verdict(status=status, results=results)


FAILED = CaseResult(passed=False, error="returned 0, expected 1")


async def test_a_pass_or_a_verdict_without_words_is_an_escape() -> None:
    escapes = (
        verdict(CaseResult(passed=True)),
        verdict(CaseResult(passed=False)),
        verdict(CaseResult(passed=False, error="x" * 5000)),
        verdict(),
        verdict(CaseResult(passed=True), status=RunStatus.UNSUPPORTED),
    )
    for answer in escapes:
        assert (await attack(Judge(answer), HACK)).outcome is Outcome.ESCAPED, answer
    assert (await attack(Judge(verdict(FAILED)), HACK)).outcome is Outcome.CONTAINED
    assert (await attack(Judge(verdict(FAILED, status=RunStatus.UNSUPPORTED)), HACK)).outcome is Outcome.UNSUPPORTED
    assert find_fault(next(HACK.requests()), verdict(FAILED)) == ""


async def test_a_masked_grade_is_an_escape_but_one_lost_sandbox_is_bad_luck() -> None:
    lost = SandboxLost("gone")
    assert (await attack(Judge(lost, lost), HACK)).outcome is Outcome.ESCAPED
    assert (await attack(Judge(lost, verdict(FAILED)), HACK)).outcome is Outcome.CONTAINED


@pytest.mark.docker
async def test_memory_kept_to_the_last_byte_is_reported_as_the_limit_that_was_hit(docker: DockerBackend) -> None:
    hack = next(hack for hack in HACKS if hack.name == "no memory left")
    limits = Limits(wall_s=20.0, cpu_s=15, memory_mib=128)
    found = [await docker.grade(replace(request, limits=limits)) for request in hack.requests()]
    assert RunStatus.OOM in {verdict.status for verdict in found}
    hits = [verdict.limit for verdict in found if verdict.status is RunStatus.OOM]
    assert all(hit is not None and hit.resource == "memory_mib" for hit in hits)
