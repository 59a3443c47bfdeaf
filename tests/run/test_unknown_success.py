"""A run of an environment that pays rewards and records no success: what is not known is nowhere a zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import view_runs

from agentgym.cli.main import main
from agentgym.evals.diagnosis import diagnose
from agentgym.evals.play import EvalResult, EvalSetup, summarize
from agentgym.run.ending import compare_ends
from agentgym.run.metrics import rollout_metrics
from agentgym.runs.curve import write_png
from agentgym.runs.evaluations import EvaluationFiles, with_held_out
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import PlainReporter
from agentgym.tables.comparing import compare_json
from agentgym.tables.curves import curves_json, lanes_json
from agentgym.tables.run import Run
from agentgym.tables.summary import run_json
from agentgym.types import Episode, Outcome

STEPS = 6


def paid(number: int, index: int, reward: float, **fields: object) -> Episode:
    one = view_runs.episode(number, index, success=False, name=f"eval-{number:04d}-{index:02d}")
    return replace(one, info={}, seed=10 * number + index, reward=reward, rewards={"length": reward}, **fields)


def evaluate(folder: RunFolder, step: int) -> EvalResult:
    """Two samples of four tasks, of which one broke; the reward rises with the step."""
    rows = [[paid(n, s, 0.3 + 0.1 * step + 0.02 * n + 0.01 * s) for s in range(2)] for n in range(4)]
    rows[3][1] = replace(rows[3][1], outcome=Outcome.INFRA_ERROR, reward=None, rewards={})
    setup = EvalSetup(
        environment="counting", version=1, data_hash="x", num_tasks=4, samples_per_task=2, seed=1, greedy=False
    )
    files, result = EvaluationFiles(folder, step), summarize(rows, f"step-{step:06d}")
    files.begin(setup.to_mapping(), resume=False)
    files.save_episodes(rows)
    files.save_result(setup.to_mapping(), result.to_mapping())
    return EvalResult.from_mapping(result.to_mapping())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    with RunFolder.create(tmp_path, "one") as folder:
        folder.save_config(view_runs.CONFIG, {})
        first = evaluate(folder, 0)
        for step in range(1, STEPS + 1):
            group = view_runs.group(step, version=step - 1, newest=step - 1)
            group.episodes = [paid(step, i, 0.1 * step + 0.01 * i) for i in range(4)]
            folder.append_metrics(step, {**rollout_metrics(group.episodes), "loop/groups": 1, "loop/skipped_groups": 3})
            folder.save_groups(step, [group], [])
        compare_ends(folder, PlainReporter(None), STEPS, first, evaluate(folder, STEPS))
        folder.set_status(RunStatus.DONE)
    return Run.at(tmp_path / "one")


def test_figures_are_of_the_reward_and_success_is_unknown(run: Run, tmp_path: Path) -> None:
    shown = run_json(run, can_steer=False)
    assert shown["success"] is None and shown["held_out"] is None and shown["spark"] == []
    assert shown["held_out_reward"] == pytest.approx(0.9 + 0.03375, abs=1e-9)  # the broken one is left out
    assert shown["gain"]["of"] == "reward" and shown["gain"]["mean"] == pytest.approx(0.6)
    [first, last] = shown["evaluations"]
    assert (last["success"], last["episodes"], last["difference"]["of"]) == (None, 7, "reward")
    assert last["reward_low"] < last["reward_mean"] == shown["held_out_reward"] < last["reward_high"]
    curves = {one["key"]: one for one in curves_json(run, [], 100)["curves"]}
    assert "rollout/success_mean" not in curves and "eval/success" not in curves
    assert curves["eval/reward"]["values"] == [first["reward_mean"], last["reward_mean"]]
    assert curves["eval/difference"]["label"].startswith("held-out reward")
    assert {one["success"] for step in lanes_json(run, 1, STEPS)["steps"] for one in step["groups"]} == {None}
    found = compare_json((run, 0), (run, STEPS))
    assert found["success"] is None and "earns 0.600 more reward" in found["sentence"]
    write_png(with_held_out(run.folder), tmp_path / "curve.png", "one")


def test_the_diagnosis_is_of_the_reward(run: Run) -> None:
    found = diagnose(run.folder)
    assert found.sentence.startswith("Learning: held-out reward went from 0.330 to 0.930, +0.600 [")
    assert [one.kind for one in found.findings] == ["no_signal"] and "success" not in found.findings[0].text


def test_what_commands_print_says_unknown(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(run.path)
    assert main(["runs", "episodes", place, "--step", "1"]) == 0 and "success unknown." in capsys.readouterr().out
    assert main(["runs", "episodes", place, "--step", "1", "--failure"]) == 0 and "(none)" in capsys.readouterr().out
    assert main(["runs", "episodes", place, "--step", "1", "--show", "1"]) == 0
    assert "success unknown" in capsys.readouterr().out
    assert main(["runs", "list", "--runs-dir", str(run.path.parent)]) == 0
    assert "0.934 (reward)" in capsys.readouterr().out


def test_an_episode_without_a_record_fails_beside_others_that_have_one() -> None:
    """Its environment judges an answer, and there was none."""
    won, none = view_runs.episode(0, 0, success=True), paid(0, 1, 0.2)
    assert rollout_metrics([won, none])["rollout/success_mean"] == 0.5
    assert summarize([[won, none]], "p").success == 0.5
    judged = replace(none, rewards={"success": 0.0})  # by the reward of that name
    assert rollout_metrics([judged])["rollout/success_mean"] == 0.0 and judged.known_success is False
