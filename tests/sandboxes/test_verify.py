"""The judgement of the hostile suite: nothing is contained without evidence, and nothing runs unclaimed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from agentgym.sandbox import DEFAULT_LIMITS, Capabilities, Limits, RunResult, RunStatus, SandboxLost, SandboxUnavailable
from agentgym.testing import FakeSandbox
from agentgym_sandboxes.audit.findings import Category, Outcome, Report, TrialResult
from agentgym_sandboxes.audit.host import Host
from agentgym_sandboxes.audit.programs import handed_back
from agentgym_sandboxes.audit.programs.checks import ended, left, reached, refused
from agentgym_sandboxes.audit.suite import HACKS, SNIPPETS, all_trials
from agentgym_sandboxes.audit.trial import Snippet
from agentgym_sandboxes.audit.verify import Examiner, verify

ABLE = Capabilities(
    backend="fake", detail="", isolated=True, full_python=True, network_off=True, memory_limit=True,
    process_limit=True, per_call_uid=True, seccomp=True, disk_limit=True,
)  # fmt: skip


def result(stdout: str = "", status: RunStatus = RunStatus.OK) -> RunResult:
    return RunResult(status=status, exit_code=0, stdout=stdout, stderr="")


class Examined(FakeSandbox):
    """Answers snippets with one result, and the next-call check with what a call sees."""

    def __init__(self, answer: RunResult | Exception, able: Capabilities = ABLE) -> None:
        super().__init__(answer, able=able)
        self.views: list[dict[str, list[object]]] = [{"process": ["agent"], "works": [1]}]
        self.losses = 0.0

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        if "seen = {}" in code:
            view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
            return result(json.dumps(view))
        return await super().run(code, stdin=stdin, limits=limits)

    def metrics(self) -> dict[str, float]:
        return {"sandbox/replaced_lost_total": self.losses}


SNIPPET = Snippet("probe", "something", refused(2), "pass", category=Category.STATE, claim="seccomp")
HELD = result("held: one: EPERM\nheld: two: EPERM\n")


async def examined(sandbox: Examined, snippet: Snippet = SNIPPET) -> TrialResult:
    return await Examiner(sandbox, sandbox.able, Host()).examine(snippet)  # type: ignore[arg-type]


async def test_what_is_refused_with_evidence_is_contained() -> None:
    assert (await examined(Examined(HELD))).outcome is Outcome.CONTAINED


@pytest.mark.parametrize(
    ("stdout", "status", "outcome"),
    [
        ("", RunStatus.OK, Outcome.BROKEN),
        ("held: one: EPERM\n", RunStatus.OK, Outcome.BROKEN),
        ("held: one: EPERM\nheld: two: EPERM\n", RunStatus.ERROR, Outcome.BROKEN),
        ("held: one: EPERM\nheld: two: EPERM\nescaped: three: 0\n", RunStatus.OK, Outcome.ESCAPED),
        ("held: one: EPERM\nunsupported: two: no ctypes\n", RunStatus.OK, Outcome.CONTAINED),
        ("unsupported: one: x\nunsupported: two: x\n", RunStatus.OK, Outcome.UNSUPPORTED),
        ("", RunStatus.UNSUPPORTED, Outcome.UNSUPPORTED),
    ],
)
async def test_without_evidence_nothing_is_contained(stdout: str, status: RunStatus, outcome: Outcome) -> None:
    assert (await examined(Examined(result(stdout, status)))).outcome is outcome


async def test_what_is_not_claimed_is_not_run() -> None:
    for able in (replace(ABLE, seccomp=False), replace(ABLE, isolated=False)):
        sandbox = Examined(HELD, able)
        assert (await examined(sandbox)).outcome is Outcome.NOT_CLAIMED
        assert sandbox.ran == []


@pytest.mark.parametrize(
    ("before", "after", "detail"),
    [
        ({"process": ["agent"]}, {"process": ["agent", "daemon"]}, 'process "daemon"'),
        ({"works": [1, 2]}, {"works": [1]}, "works no longer 2"),
    ],
)
async def test_what_the_next_call_finds_or_misses_is_an_escape(before, after, detail: str) -> None:
    sandbox = Examined(HELD)
    sandbox.views = [before, after]
    finding = await examined(sandbox)
    assert finding.outcome is Outcome.ESCAPED and detail in finding.detail


async def test_what_destroys_its_sandbox_escapes() -> None:
    assert (await examined(Examined(SandboxLost("gone")))).outcome is Outcome.ESCAPED

    class Retrying(Examined):
        def metrics(self) -> dict[str, float]:
            self.losses += 1  # one container was lost between two reads, and the call was retried
            return super().metrics()

    assert (await examined(Retrying(HELD))).outcome is Outcome.ESCAPED


async def test_an_unavailable_sandbox_is_no_evidence_about_the_snippet() -> None:
    assert (await examined(Examined(SandboxUnavailable("full")))).outcome is Outcome.BROKEN


async def test_a_blame_is_not_passed_on_to_the_next_trial() -> None:
    sandbox = Examined(HELD)
    clean: dict[str, list[object]] = {"process": ["agent"]}
    dirty: dict[str, list[object]] = {"process": ["agent", "daemon"]}
    sandbox.views = [clean, dirty, dirty, dirty]
    examiner = Examiner(sandbox, ABLE, Host())  # type: ignore[arg-type]
    assert (await examiner.examine(SNIPPET)).outcome is Outcome.ESCAPED
    assert (await examiner.examine(SNIPPET)).outcome is Outcome.CONTAINED


def test_counts_and_ends_need_evidence_too() -> None:
    assert reached(5)(result("reached: forks: 5\n")).outcome is Outcome.CONTAINED
    assert reached(5)(result("reached: forks: 6\n")).outcome is Outcome.ESCAPED
    assert reached(5)(result("")).outcome is Outcome.BROKEN
    assert reached(5)(result("reached: forks: 0\n")).outcome is Outcome.BROKEN
    end = ended(RunStatus.TIMEOUT, after="fork")
    assert end(result("made: fork: \n", RunStatus.TIMEOUT)).outcome is Outcome.CONTAINED
    assert end(result("", RunStatus.TIMEOUT)).outcome is Outcome.BROKEN
    assert end(result("made: fork: \n")).outcome is Outcome.ESCAPED
    assert left("file")(result("made: file: \n")).outcome is Outcome.CONTAINED
    assert left("file")(result("made: other: \n")).outcome is Outcome.BROKEN


async def test_odd_results_that_are_judged_right_are_an_escape() -> None:
    """The check has been seen to fail: this sandbox believes everything."""
    scene = next(trial for trial in handed_back.SNIPPETS if trial.name == "odd_results")
    with Host() as host:
        judgement = await scene.attempt(Examined(HELD), host)  # type: ignore[arg-type]
    assert judgement.outcome is Outcome.ESCAPED


async def test_results_are_reported_as_they_come() -> None:
    seen: list[TrialResult] = []
    sandbox = Examined(result("", RunStatus.UNSUPPORTED))
    report = await verify(sandbox, only=["unshare", "mounts"], on_result=seen.append)  # type: ignore[arg-type]
    assert [result.name for result in seen] == ["unshare", "mounts"]
    assert report.counts() == {Outcome.UNSUPPORTED: 2} == report.counts(Category.SURFACE)
    assert report.holds
    assert not Report(capabilities=ABLE, trials=(), wall_s=0.0).holds
    with pytest.raises(ValueError, match="no trial and no category 'none'"):
        await verify(sandbox, only=["none"])  # type: ignore[arg-type]


def test_no_trial_is_lost_and_each_has_a_name_of_its_own() -> None:
    names = [trial.name for trial in all_trials()]
    assert len(set(names)) == len(names)
    assert len(SNIPPETS) >= 194 and len(HACKS) >= 126
    codes = [trial.code for trial in SNIPPETS if isinstance(trial, Snippet)]
    assert len(set(codes)) == len(codes)
    assert {trial.category for trial in all_trials()} == set(Category)
    assert all(trial.tries and "\n" not in trial.tries for trial in all_trials())
