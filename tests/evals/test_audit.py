"""The check of environments finds each planted fault by its name, and none where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import UserError
from agentgym.evals.audit.check import CheckConfig, check_environment
from agentgym.evals.audit.findings import KINDS, Report
from agentgym.evals.audit.probes import PROBES
from agentgym.held_loop import LoopWatch
from agentgym.hooks import PluginRegistry

FAULTY = Path(__file__).parents[1] / "data" / "faulty"
GAMED = {
    "AnyAnswer": "wrong",
    "NothingIsRight": "empty",
    "ParsesLoosely": "garbage",
    "LongIsRight": "huge",
    "InText": "candidates",
    "AnswerInPrompt": "echo",
    "FormatPays": "format_spam",
    "BelievesVerdicts": "forged",
    "TakesNan": "not_numbers",
    "TakesFullWidth": "lookalikes",
    "TakesCyrillic": "lookalikes",
    "TakesClaims": "early_exit",
    "ErrorsOpenTheBox": "junk_calls",
}
PLANTED = {  # the finding, where, and the parts of the check that are needed
    "broken.py:OracleLoses": ("oracle_loses", "oracle", "oracle"),
    "broken.py:OneAnswer": ("small_gap", "rewards", "oracle,usual"),
    "broken.py:ReplyRaises": ("crash", "environment:ReplyRaises.reply JSONDecodeError", "garbage"),
    "broken.py:RewardRaises": ("crash", "reward:first_letter IndexError", "empty"),
    "broken.py:OracleRaises": ("crash", "solve", "oracle"),
    "gamed.py:ToolRaises": ("crash", "environment:ToolRaises.put ZeroDivisionError", "junk_calls"),
    "broken.py:TasksRaise": ("crash", "tasks of test", "tasks"),
    "broken.py:RewardHangs": ("hang", "reward:slow", "format_spam"),
    "broken.py:RewardIsNan": ("out_of_range", "reward:brevity", "empty"),
    "broken.py:Blocks": ("blocks", "oracle", "oracle"),
    "broken.py:SlowTasks": ("slow_tasks", "test", "tasks"),
    "broken.py:SlowReward": ("slow_rewards", "rewards", "oracle"),
    "broken.py:DrawsOnSelf": ("tasks_change", "second call", "processes"),
    "broken.py:HashesTasks": ("tasks_change", "processes", "processes"),
    "broken.py:HashesScores": ("scores_change", "processes", "processes"),
    "broken.py:DrawsScores": ("scores_change", "played again", "together"),
    "broken.py:StateOnSelf": ("shared_state", "episodes", "together"),
    "broken.py:NotATask": ("bad_task", "test", "tasks"),
    "broken.py:YieldsMappings": ("bad_task", "test", "tasks,empty,processes"),
    "broken.py:MessageWithoutContent": ("bad_task", "test", "tasks,empty"),
    "broken.py:AnswerIsASet": ("not_json", "test", "tasks"),
    "broken.py:KeysAreTuples": ("not_json", "test", "tasks,oracle,processes"),
    "broken.py:RightIsUnscored": ("oracle_loses", "oracle", "oracle"),
    "broken.py:NoTrain": ("no_tasks", "train", "tasks"),
    "sums.py:Endless": ("endless_test", "test", "tasks"),
    "broken.py:OneId": ("equal_ids", "test", "tasks"),
    "broken.py:TestRepeats": ("repeated_tasks", "test", "tasks"),
    "broken.py:Overlaps": ("split_overlap", "content", "tasks"),
    "broken.py:StructureOverlaps": ("structure_overlap", "structure", "tasks"),
    "broken.py:LongPrompts": ("long_prompt", "prompts", "prompts"),
}


@pytest.fixture(autouse=True)
def in_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FAULTY)


async def checked(path: str, **settings: object) -> Report:
    config = CheckConfig(name=path, **settings)  # type: ignore[arg-type]
    return await check_environment(PluginRegistry.discover(), config, lambda text: None)


@pytest.mark.parametrize("path", ["sums.py:Sums", "gamed.py:Boxes"])
async def test_where_there_is_no_fault_nothing_is_found(path: str) -> None:
    report = await checked(path)
    assert report.findings == []
    assert (report.oracle, report.gap) == (1.0, 1.0 - report.floor)
    assert {"oracle", "wrong", "empty", "candidates", "huge"} < {one.probe for one in report.probes}
    assert report.figures["compared_scores"] >= 6


@pytest.mark.parametrize("path", ["sums.py:Digits", "sums.py:Explained"])
@pytest.mark.parametrize("seed", range(4))
async def test_an_answer_that_is_right_by_chance_is_not_gamed(path: str, seed: int) -> None:
    report = await checked(path, only=["oracle", "wrong", "usual", "lookalikes"], num_tasks=24, seed=seed)
    assert report.findings == [] and report.oracle == 1.0
    assert report.floor is not None and report.floor > 0.0


async def test_an_evaluation_set_is_checked_without_a_train_split() -> None:
    report = await checked("sums.py:TestOnly", num_tasks=200)
    assert report.findings == [] and "it has no train split" in report.notes
    assert report.figures["test_tasks"] > 0 and report.figures["compared_scores"] >= 6


async def test_a_check_that_could_play_nothing_is_not_clean() -> None:
    report = await checked("broken.py:YieldsMappings", only=["oracle"])
    assert [found.kind for found in report.findings] == ["no_tasks"]


async def test_an_answer_without_a_score_is_no_finding() -> None:
    report = await checked("broken.py:EmptyIsUnscored", only=["oracle", "empty"])
    assert report.findings == [] and not any(one.finding for one in report.probes)


async def test_tasks_that_the_oracle_cannot_do_are_counted_and_probed() -> None:
    report = await checked("broken.py:SolvesSome", only=["oracle", "together", "empty"], num_tasks=9)
    assert report.findings == [] and report.oracle == 1.0
    [note] = [note for note in report.notes if note.startswith("the oracle knows no way to do ")]
    [oracle, empty] = report.probes
    assert note.endswith(f"{empty.episodes - oracle.episodes} of 9 tasks") and oracle.episodes < empty.episodes == 9


@pytest.mark.parametrize(("name", "probe"), GAMED.items())
async def test_what_can_be_gamed_is_found_by_the_probe_that_does(name: str, probe: str) -> None:
    report = await checked(f"gamed.py:{name}", only=tuple(PROBES))
    assert {(found.kind, found.where) for found in report.findings} == {("gamed", probe)}
    assert [one.probe for one in report.probes if one.finding] == [probe]


@pytest.mark.parametrize("path", PLANTED)
async def test_a_planted_fault_is_found_by_its_name(path: str) -> None:
    kind, where, parts = PLANTED[path]
    report = await checked(path, only=parts.split(","), num_tasks=2 if kind in ("blocks", "slow_rewards") else 8)
    assert where in [found.where for found in report.findings]
    assert {found.kind for found in report.findings} == {kind}


@pytest.mark.parametrize(
    ("name", "where", "line"),
    [
        ("TasksHang", "tasks of test", "in tasks"),
        ("ReplyHoldsTheLoop", "environment:ReplyHoldsTheLoop.reply", "in reply"),
        ("OracleHangs", "solve", "in solve"),
    ],
)
def test_a_call_that_never_awaits_is_a_hang_with_its_line_and_ends_the_check(name: str, where: str, line: str) -> None:
    with LoopWatch(print, every_s=0.02):
        report = run_until_stopped(checked(f"broken.py:{name}", env_timeout_s=0.05), print)
    [found] = report.findings
    assert (found.kind, found.where) == ("hang", where)
    assert re.search(rf"held the event loop.*broken\.py:\d+ {line}", f"{found.text}\n{found.detail}")


def test_every_kind_of_finding_has_a_planted_fault() -> None:
    assert {"gamed", *(kind for kind, _, _ in PLANTED.values())} == set(KINDS)
    assert {*GAMED.values(), "usual"} == set(PROBES)


async def test_a_crash_comes_with_the_head_of_its_traceback() -> None:
    report = await checked("broken.py:ReplyRaises", only=["garbage"])
    [found] = report.findings
    assert found.detail.startswith("JSONDecodeError: ") and "broken.py" in found.detail


@pytest.mark.parametrize("only", ["tasks", "oracle"])
async def test_what_the_user_has_not_installed_is_the_users_mistake(only: str) -> None:
    with pytest.raises(UserError, match="fetch it first"):
        await checked("broken.py:NeedsData", only=[only])


async def test_an_accepted_finding_does_not_count() -> None:
    report = await checked("gamed.py:InText", only=["candidates"], allowed=["gamed:candidates"])
    assert (report.findings, [found.kind for found in report.allowed]) == ([], ["gamed"])
    assert json.loads(json.dumps(report.to_mapping()))["clean"] is True


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"only": ["wrnog"]}, "Did you mean 'wrong'?"),
        ({"allowed": ["gmaed"]}, "Did you mean 'gamed'?"),
        ({"num_tasks": 1}, "give at least 2"),
    ],
)
async def test_a_wrong_question_names_what_there_is(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected.replace("?", r"\?")):
        await checked("sums.py:Sums", **settings)
