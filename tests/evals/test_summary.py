"""The one summary of an evaluation: its figures are those of a second, plain count, and what is unknown stays None."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from view_runs import episode, write_evaluation

from agentgym.errors import UserError
from agentgym.evals.play import EvalSetup, summarize
from agentgym.evals.summary import EvaluationSummary, evaluation_summary
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder
from agentgym.runs.notes import write_note
from agentgym.tables.leaderboard import matrix, names_of, rows_of, table

BASE = {"model": {"path": "builtin:tiny"}, "env": {"name": "counting", "options": {"level": 2}}, "agent": {"name": "a"}}


def made(folder: Path, config: dict[str, object], name: str = "run") -> RunFolder:
    run = RunFolder.create(folder, name)
    run.save_config(config)
    run.close()
    return run


def test_the_figures_are_those_of_the_episodes(tmp_path: Path) -> None:
    run = made(tmp_path, BASE)
    write_evaluation(run, 0, wins=3, tasks=8, cut=1)
    write_note(run.path, step=None, text="whole", add=["draft", "paper"], remove=[])
    write_note(run.path, step=None, text=None, add=[], remove=["draft"])
    write_note(run.path, step=0, text="this one", add=["first", "paper"], remove=[])
    write_note(run.path, step=5, text="another", add=[], remove=[])
    found = evaluation_summary(run, 0)
    assert found is not None and found.success is not None
    assert (found.success.num, found.success.num_successes, found.num_left_out) == (14, 6, 2)
    assert found.success.value == 3 / 7 and found.success.low < 3 / 7 < found.success.high
    assert {one.name: one.mean for one in found.rewards} == {"": 3 / 7, "exact": 3 / 7}, "`format` scored nothing"
    assert (found.tokens, found.seconds, found.prompt_tokens, found.cost) == (16 * 5, 1.0, None, None)
    assert (found.benchmark, found.agent, found.policy) == ("counting (level=2)", "a", "builtin:tiny")
    assert (found.tags, found.note) == (("paper", "first"), "whole; this one")
    assert EvaluationSummary.from_mapping(json.loads(json.dumps(found.to_mapping()))) == found


def test_what_is_unknown_is_none(tmp_path: Path) -> None:
    run = made(tmp_path, BASE)
    one = replace(episode(0, 0, success=True), info={}, rewards={}, reward=0.25)
    setup = EvalSetup(
        environment="e", version=1, data_hash="x", num_tasks=1, samples_per_task=1, seed=1, greedy=False
    )  # fmt: skip
    files = EvaluationFiles(run, 0)
    files.begin(setup.to_mapping(), resume=False)
    files.save_episodes([[one]])
    assert evaluation_summary(run, 0) is None, "it is not finished"
    result = summarize([[one]], "model")
    usage = {"turns": 1, "turns_estimated": 1, "completion_tokens": 7, "prompt_tokens": 9, "cost": 0.0}
    files.save_result(setup.to_mapping(), replace(result, usage=usage, currency="USD").to_mapping())
    found = evaluation_summary(run, 0)
    assert found is not None and (found.success, found.cost, found.currency) == (None, None, "")
    header, [cells] = table(rows_of([found]), "reward")
    assert cells[header.index("tokens/episode")] == "~7"
    assert (found.rewards[0].mean, found.rewards[0].low, found.tokens, found.prompt_tokens) == (0.25, None, 7, 9)
    run.episode_file(0, evaluation=True).unlink()
    without = evaluation_summary(run, 0)
    assert without is not None and (without.seconds, without.turns, without.tokens) == (None, None, 7)
    files.save_result(setup.to_mapping(), result.to_mapping())
    neither = evaluation_summary(run, 0)
    assert neither is not None and neither.tokens is None


def test_categories_and_measures_are_columns_of_the_leaderboard(tmp_path: Path) -> None:
    run = made(tmp_path, BASE)
    rows = []
    for number, category in enumerate(("short", "short", "long")):
        one = episode(number, 0, success=number == 0)
        measured = {**one.info, "measures": {"safe": number > 0}}
        rows.append([replace(one, info=measured, task=replace(one.task, category=category))])
    setup = EvalSetup(
        environment="e", version=1, data_hash="x", num_tasks=3, samples_per_task=1, seed=1, greedy=False
    )  # fmt: skip
    files = EvaluationFiles(run, 0)
    files.begin(setup.to_mapping(), resume=False)
    files.save_episodes(rows)
    files.save_result(setup.to_mapping(), summarize(rows, "model").to_mapping())
    found = evaluation_summary(run, 0)
    assert found is not None
    assert EvaluationSummary.from_mapping(json.loads(json.dumps(found.to_mapping()))) == found
    [row] = rows_of([found])
    flat = row.flat(*names_of([row]))
    assert (flat["category.short"], flat["category.long"], flat["measure.safe"]) == (0.5, 0.0, 2 / 3)
    assert flat["measure.safe_low"] < 2 / 3 < flat["measure.safe_high"]  # type: ignore[operator]
    assert table([row], "measure.safe")[0][:3] == ("policy", "measure.safe", "95% interval")


def test_seeds_of_one_recipe_are_alike_wherever_their_checkpoints_were_measured(tmp_path: Path) -> None:
    """In a run's folder, and in one of its own, whose path may be relative to the folder above."""
    recipe: dict[str, object] = {**BASE, "loop": {"seed": 0, "steps": 9}, "logging": {"name": "a"}}
    first = made(tmp_path / "runs", recipe, "a")
    (first.checkpoint_dir(5) / "hf").mkdir(parents=True)
    made(tmp_path / "runs", recipe | {"loop": {"seed": 1, "steps": 9}}, "b")
    path = {"path": "runs/b/checkpoints/step-000005"}
    second = made(tmp_path / "evals", recipe | {"model": path, "loop": {"steps": 40}, "eval": {"tasks": 3}}, "b-5")
    other = made(tmp_path / "runs", recipe | {"loop": {"seed": 2, "steps": 10}}, "c")
    (other.checkpoint_dir(5) / "hf").mkdir(parents=True)
    for run in (first, second, other):
        write_evaluation(run, 5, wins=2)
    a, b, c = (evaluation_summary(run, 5) for run in (first, second, other))
    assert a and b and c
    assert (a.policy, a.step, a.train_seed, a.model) == ("a step 5", 5, 0, "builtin:tiny")
    assert (b.policy, b.step, b.train_seed, b.model) == ("b step 5", 5, 1, "builtin:tiny")
    assert a.recipe == b.recipe != c.recipe


def test_what_another_version_saved_is_a_users_error(tmp_path: Path) -> None:
    run = made(tmp_path, BASE)
    write_evaluation(run, 0, wins=1)
    path = run.evaluation_file(0, ".json")
    path.write_text(json.dumps({"setup": {"environment": "e"}, "result": {"success": 1}}))
    with pytest.raises(UserError, match=r"step-000000\.json"):
        evaluation_summary(run, 0)


def test_rows_with_the_same_name_are_told_apart_and_not_joined_in_the_matrix(tmp_path: Path) -> None:
    """One model at two servers, one of them twice, and runs of one name in two folders."""
    found = []
    for name, server in (("one", "a:1"), ("two", "user:secret@b:2"), ("again", "a:1")):
        config = {**BASE, "model": {"path": "openai:m"}, "policy": {"base_url": f"http://{server}/v1"}}
        found.append(made(tmp_path / "evals", config, name))
    for place in ("old/runs", "new/runs"):
        found.append(made(tmp_path / place, BASE))
        (found[-1].checkpoint_dir(0) / "hf").mkdir(parents=True)
    summaries = []
    for number, run in enumerate(found):
        write_evaluation(run, 0, wins=number, tasks=8)
        one = evaluation_summary(run, 0)
        assert one is not None
        summaries.append(replace(one, time=float(number)))
    rows = rows_of(summaries, seeds=False)
    names = [f"openai:m with a (evals/{name})" for name in ("again", "two", "one")]
    assert [row.policy for row in rows][2:] == names and "secret" not in str(summaries)
    assert len({row.policy for row in rows}) == 5
    _, cells = matrix(rows, "success")
    labels = ["openai:m with a (a:1)", "openai:m with a (b:2)"]
    assert sorted(line[0] for line in cells)[:2] == labels and len({line[0] for line in cells}) == 4
