"""A run's sentence is right, and each way to go wrong is named, on figures of real runs of the shipped policy.

tests/data/diagnosed_runs.json was made by `python benchmarks/arm.py` with nothing else, with --random-reward, with
optimizer.lr=0, and with --lag 16 and loss.name=reinforce.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.evals.diagnosis import Diagnosis, Evaluation, diagnose, diagnose_figures
from agentgym.evals.play import EvalResult, EvalSetup
from agentgym.evals.remedies import REMEDIES
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.metrics import MetricsRow

RUNS = json.loads((Path(__file__).parent.parent / "data" / "diagnosed_runs.json").read_text())


def rows_of(name: str) -> list[MetricsRow]:
    columns = RUNS[name]["metrics"]
    return [
        MetricsRow(step=step, time=0.0, metrics={key: v for key, v in zip(columns, row, strict=True) if v is not None})
        for step, row in enumerate(zip(*columns.values(), strict=True), start=1)
    ]


SETUP: dict[str, object] = {
    "environment": "e",
    "version": 1,
    "data_hash": "h",
    "num_tasks": 40,
    "samples_per_task": 1,
    "seed": 1,
    "greedy": False,
}


def evaluations_of(name: str) -> list[Evaluation]:
    return [evaluation(one["step"], one["success"], one["setup"]) for one in RUNS[name]["evaluations"]]


def evaluation(step: int, success: str, setup: dict[str, object]) -> Evaluation:
    """success: a digit for each episode, task by task."""
    made, samples = EvalSetup.from_mapping(setup), EvalSetup.from_mapping(setup).samples_per_task
    flat = [digit == "1" for digit in success]
    result = EvalResult(
        checkpoint="", success=sum(flat) / len(flat), low=0.0, high=1.0, reward_mean=0.0, num_tasks=made.num_tasks,
        num_episodes=len(flat), num_unsupported=0, num_infra_errors=0,
        by_task=tuple(tuple(flat[at : at + samples]) for at in range(0, len(flat), samples)),
    )  # fmt: skip
    return Evaluation(step=step, setup=made, result=result)


def of_run(name: str) -> Diagnosis:
    return diagnose_figures(rows_of(name), evaluations_of(name), {"loss": {"name": RUNS[name]["loss"]}})


def names(found: Diagnosis, *severities: str) -> list[str]:
    return [one.kind for one in found.findings if not severities or one.severity in severities]


def test_a_run_that_learns_is_called_so_with_the_paired_interval_and_no_complaint() -> None:
    found = of_run("learning")
    assert found.verdict == "learning" and names(found, "problem", "warning") == []
    assert found.change is not None and found.change.paired and found.change.count == 64
    assert found.sentence == (
        "Learning: held-out success went from 0.422 to 0.883, +0.461 [+0.329, +0.565] "
        "(95%, paired by task, n = 64 tasks, steps 0 to 20)."
    )


def test_a_random_reward_is_named_as_the_cause_of_unlearning() -> None:
    found = of_run("random")
    assert found.verdict == "unlearning" and names(found, "problem") == ["rewards_do_not_pay"]
    assert "0.422 to 0.164" in found.sentence and "the reward went" in found.sentence
    assert "rewards" in found.findings[0].fields


def test_a_learning_rate_of_zero_is_named_and_the_same_weights_show_no_change() -> None:
    found = of_run("lr0")
    assert found.verdict == "no_change" and names(found, "problem") == ["rate_zero"]
    assert "+0.000" in found.sentence and "would have shown in 8 of 10" in found.sentence


def test_the_collapse_on_stale_samples_is_blamed_on_the_loss_that_takes_them_as_new() -> None:
    found = of_run("stale")
    assert found.verdict == "unlearning" and found.change is not None and not found.change.paired
    assert names(found, "problem") == ["staleness", "drift", "no_signal_wrong"]
    assert "entropy_explosion" in names(found, "warning")
    assert "16.0 versions old" in found.sentence and "loss.name" in found.findings[0].fields
    corrected = diagnose_figures(rows_of("stale"), (), {"loss": {"name": "grpo"}})
    assert "staleness" in names(corrected, "warning"), "with a correction it only slows learning down"


def scaled(key: str, factor: float, *, least: float = 0.0) -> Callable[[MetricsRow], dict[str, float]]:
    return lambda row: {key: max(least, row.metrics.get(key, 0.0) * factor)}


def fixed(**values: float) -> Callable[[MetricsRow], dict[str, float]]:
    return lambda row: {key.replace("__", "/"): value for key, value in values.items()}


FAILING = fixed(rollout__success_mean=0.3, rollout__reward_mean=0.3)
AT_FAULT: dict[str, Sequence[Callable[[MetricsRow], dict[str, float]]]] = {
    "entropy_collapse": [FAILING, scaled("train/entropy", 0.02)],
    "entropy_explosion": [scaled("train/entropy", 8)],
    "length_explosion": [scaled("rollout/completion_tokens_mean", 3)],
    "length_collapse": [scaled("rollout/completion_tokens_mean", 0.2)],
    "truncation": [fixed(rollout__truncated_share=0.2)],
    "cut_by_time": [fixed(rollout__truncated_share=0.2, rollout__time_cut_share=0.2)],
    "invalid": [fixed(rollout__invalid_share=0.3, rollout__truncated_share=0.05)],
    "restarts": [fixed(trainer__restarts_total=2.0)],
    "infra_errors": [scaled("rollout/infra_errors", 0, least=6.0)],
    "mismatch": [fixed(sync__mismatch_max=0.4)],
    "engine_mismatch": [fixed(mismatch__engine_kl=0.05)],
    "drift": [fixed(train__mismatch_kl=0.1)],
    "clipped": [fixed(train__clip_share=0.4)],
    "correction_cut": [fixed(train__correction_cut_share=0.5)],
    "kl_growth": [fixed(train__kl_ref=0.8)],
    "staleness": [fixed(loop__staleness_mean=5.0)],
    "gradient_spike": [fixed(train__grad_norm=50.0)],
    "not_finite": [fixed(train__loss=math.nan)],
    "reward_missing": [fixed(reward__style_missing=40.0)],
    "no_signal": [fixed(loop__skipped_groups=30, loop__skipped_right=15, loop__skipped_wrong=15)],
    "no_signal_wrong": [fixed(loop__skipped_groups=30, loop__skipped_right=2, loop__skipped_wrong=28)],
    "no_signal_right": [fixed(loop__skipped_groups=30, loop__skipped_right=28, loop__skipped_wrong=2)],
    "rewards_do_not_pay": [fixed(rollout__success_mean=0.3)],
    "idle": [fixed(time__compute_share=0.5)],
    "waits_for_generation": [fixed(time__step_s=10, time__generate_s=9.5, time__sandbox_s=3, time__train_s=1)],
    "waits_for_sandbox": [fixed(time__step_s=10, time__generate_s=3, time__sandbox_s=9.5, time__train_s=1)],
    "waits_for_trainer": [fixed(time__step_s=10, time__generate_s=3, time__sandbox_s=3, time__train_s=9.5)],
}  # fmt: skip


@pytest.mark.parametrize("name", AT_FAULT)
def test_each_fault_is_found_where_it_begins_and_nowhere_before(name: str) -> None:
    """The last half of a healthy run is changed in one way: that one is found, and nothing else that it is not."""
    rows = rows_of("learning")
    changed = [replace(row, metrics=dict(row.metrics)) for row in rows]
    for row in changed[10:]:
        for change in AT_FAULT[name]:
            row.metrics.update(change(row))
    before, found = diagnose_figures(rows), diagnose_figures(changed)
    assert name not in names(before)
    new = set(names(found)) - set(names(before))
    assert name in new and new <= {name, "rewards_do_not_pay"}, new
    one = next(one for one in found.findings if one.kind == name)
    assert one.where.endswith(" to 20") and one.text and one.meaning and one.advice
    assert all(text.count("{") == 0 for text in (one.text, one.meaning, one.advice))


def test_what_the_engine_does_is_not_blamed_on_staleness() -> None:
    def found(**values: float) -> list[str]:
        rows = [replace(row, metrics={**row.metrics, **fixed(**values)(row)}) for row in rows_of("learning")]
        return [name for name in names(diagnose_figures(rows)) if name in ("engine_mismatch", "drift")]

    together = 0.2
    assert found(train__mismatch_kl=together, mismatch__engine_kl=0.2, mismatch__staleness_kl=0.001) == [
        "engine_mismatch"
    ]
    assert found(train__mismatch_kl=together, mismatch__engine_kl=0.001, mismatch__staleness_kl=0.2) == ["drift"]


def test_every_remedy_belongs_to_a_fault_that_a_test_shows() -> None:
    shown = {*AT_FAULT, "ended", "past_best", "rate_zero", "gradient_zero", "never_succeeded", "evaluation_cut"}
    assert set(REMEDIES) == shown
    still = [replace(row, metrics={**row.metrics, "train/grad_norm": 0.0}) for row in rows_of("learning")]
    assert "gradient_zero" in names(diagnose_figures(still), "problem")


def test_a_run_past_its_best_policy_is_told_which_step_was_better() -> None:
    played = [evaluation(0, "1" * 10 + "0" * 30, SETUP), evaluation(10, "1" * 38 + "00", SETUP)]
    assert "past_best" not in names(diagnose_figures([], played))
    fallen = diagnose_figures([], [*played, evaluation(20, "1" * 20 + "0" * 20, SETUP)])
    assert fallen.verdict == "learning" and names(fallen) == ["past_best"]
    assert "0.950 after step 10, and 0.500 now" in fallen.findings[0].text
    other = evaluation(30, "0" * 40, {**SETUP, "seed": 2})
    assert diagnose_figures([], [*played, other]).change is None, "other seeds are not compared"


def test_a_smaller_check_is_paired_with_the_first_tasks_of_the_larger_one() -> None:
    small = {**SETUP, "num_tasks": 10, "data_hash": "s"}
    found = diagnose_figures([], [evaluation(0, "0" * 10 + "1" * 30, SETUP), evaluation(5, "1" * 10, small)])
    assert found.change is not None and (found.change.first, found.change.last, found.change.count) == (0.0, 1.0, 10)


def test_a_run_without_steps_is_too_early_to_judge() -> None:
    found = diagnose_figures([])
    assert found.verdict == "too_early" and found.change is None and not found.findings
    assert found.sentence.startswith("Too early to say: no step is finished")


def test_a_run_folder_is_read_and_a_run_that_failed_says_why(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "one") as run:
        for row in rows_of("learning"):
            run.append_metrics(row.step, row.metrics)
        run.set_status(RunStatus.FAILED, "the disk\nis full")
        found = diagnose(run)
    assert found.verdict == "learning" and "n = 12 steps, not paired" in found.sentence
    assert found.findings[0].kind == "ended"
    assert found.sentence.startswith("Failed after step 20: the disk is full. Learning: ")


def test_what_never_succeeded_is_not_blamed_on_what_follows_from_it() -> None:
    """Seen on 38 steps of stale samples, if none had succeeded; a reward that rises, or held-out success, counts."""
    rows = [replace(row, metrics={**row.metrics, "rollout/success_mean": 0.0}) for row in rows_of("stale")]
    found = diagnose_figures(rows, (), {"loss": {"name": "reinforce"}})
    assert found.sentence.startswith("Nothing has succeeded: none of the 13528 episodes of 38 steps succeeded. Choose")
    assert not {"staleness", "drift", "entropy_explosion", "no_signal_wrong"} & set(names(found))
    rising = [replace(row, metrics={**row.metrics, "rollout/reward_mean": row.step / 100}) for row in rows]
    assert diagnose_figures(rising).sentence.startswith("Learning: reward went from")
    played = [evaluation(0, "0" * 40, SETUP), evaluation(38, "01" * 20, SETUP)]
    assert diagnose_figures(rows, played).sentence.startswith("Learning: held-out success went from 0.000 to 0.500")


def test_an_evaluation_that_was_cut_is_left_out_once_the_limit_was_raised() -> None:
    cut = evaluation(0, "0" * 40, SETUP)
    cut = replace(cut, result=replace(cut.result, success=None, num_episodes=0, num_cut=40, cut_by="a = 1",
                                      by_task=((None,),) * 40))  # fmt: skip
    found = diagnose_figures([], [cut, evaluation(2, "0" * 40, SETUP), evaluation(4, "1" * 40, SETUP)])
    assert found.sentence.startswith("Learning: held-out success went from 0.000 to 1.000")
    assert names(found) == ["evaluation_cut"] and names(found, "note") == ["evaluation_cut"]
    found = diagnose_figures([], [evaluation(0, "0" * 40, SETUP), replace(cut, step=2)])
    assert found.sentence.startswith(
        "The machine was too slow: 40 of 40 held-out episodes after step 2 were cut by a = 1"
    )


def test_a_reward_that_rises_without_success_is_named() -> None:
    rows = [
        replace(row, metrics={**row.metrics, "rollout/success_mean": 0.3, "rollout/reward_mean": 0.2 + row.step / 40})
        for row in rows_of("learning")
    ]
    assert "rewards_do_not_pay" in names(diagnose_figures(rows), "warning")


def test_fine_tuning_gets_no_advice_on_the_entropy_of_a_policy_that_plays() -> None:
    falls = [{"sft/loss": 1 / step, "train/entropy": 1.0 if step < 9 else 0.001} for step in range(1, 19)]
    found = diagnose_figures([MetricsRow(step=n, time=0.0, metrics=row) for n, row in enumerate(falls, start=1)])
    assert found.verdict == "learning" and found.sentence.startswith("Learning: training loss") and not found.findings
