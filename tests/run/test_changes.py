"""Settings that change while a run goes on: applied at their step, judged by it, and repeated by a resume."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from same_run import differences

from agentgym.config import apply_overrides
from agentgym.recipe import Recipe
from agentgym.run.changes import go_on
from agentgym.run.layers import finish_recipe
from agentgym.run.settle import settle_served
from agentgym.run.train import train
from agentgym.runs.changes import Change, read_changes, record_change
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.starts import start_of
from agentgym.runs.steering import Steering
from tests.audited import audited

ASKED = {
    1: {"loop.max_staleness": 2, "loop.groups_per_step": 2, "optimizer.lr": 5e-4},
    2: {"loop.max_staleness": 9, "loop.group_size": 9, "loop.eval_every": 0},
    4: {"loop.max_staleness": 0, "optimizer.lr": 2e-4, "loop.eval_every": 5},
}


def trained(recipe: Recipe, folder: RunFolder, reporter, **how: object) -> RunFolder:
    with folder:
        asyncio.run(train(recipe, folder, reporter, **how))
        folder.set_status(RunStatus.DONE)
    return RunFolder.open(folder.path)


def asking(folder: RunFolder) -> Callable[[int], None]:
    def on_step(step: int) -> None:
        for setting, value in ASKED.get(step, {}).items():
            Steering(folder.path).ask("set", setting, value)

    return on_step


@pytest.fixture(scope="module")
def changed(make_lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, RunFolder, list[str]]:
    lab = make_lab(tmp_path_factory.mktemp("changed"))
    recipe = lab.recipe(
        "loop.steps=5", "loop.deterministic=true", "loop.checkpoint_every=3", "eval.at_end=false", "loop.eval_tasks=2",
        "optimizer.lr=1e-3", "optimizer.warmup_steps=0", "weights.keep=20",
        "task_sampler={name: learnable, candidates: 2}",
    )  # fmt: skip
    folder = lab.new_run(recipe)
    reporter = lab.reporter(on_step=asking(folder))
    return recipe, trained(recipe, folder, reporter), reporter.notes


@pytest.mark.hostile
def test_each_change_holds_from_the_next_step_on_and_the_audit_goes_by_it(changed) -> None:
    _, folder, notes = changed
    rows = {row.step: row.metrics for row in folder.read_metrics()}
    assert [rows[step]["train/lr"] for step in rows] == [1e-3] + [5e-4] * 3 + [2e-4]
    assert [rows[step]["loop/groups"] for step in rows] == [3] + [2] * 4
    assert [rows[step]["loop/staleness_max"] for step in (4, 5)] == [2, 0]
    assert "eval/success" in rows[5] and "after step 1: optimizer.lr 0.001 -> 0.0005" in notes
    assert [str(one) for one in read_changes(folder.path)][:2] == [
        "loop.max_staleness 1 -> 2", "loop.groups_per_step 3 -> 2",
    ]  # fmt: skip
    assert [start_of(folder, step).config["optimizer"]["lr"] for step in (1, 2, 5)] == [1e-3, 5e-4, 2e-4]
    assert audited(folder.path).findings == []
    (folder.path / "changes.jsonl").rename(folder.path / "hidden")
    assert {one.kind for one in audited(folder.path).findings} == {"stale"}
    (folder.path / "hidden").rename(folder.path / "changes.jsonl")


@pytest.mark.hostile
def test_a_resume_repeats_the_changes_after_its_checkpoint_bit_for_bit(changed, lab) -> None:
    recipe, folder, _ = changed
    shutil.copytree(folder.path, lab.root / "again")
    reporter = lab.reporter()
    again = trained(recipe, RunFolder.open(lab.root / "again", for_writing=True), reporter, resume=True, from_step=3)
    assert differences(folder, again) == [] and audited(again.path).findings == []
    assert read_changes(again.path) == read_changes(folder.path)
    for said in ("0.001 -> 0.0005, as it was changed after step 1", "0.0005 -> 0.0002, again after step 4"):
        assert any(f"optimizer.lr {said}" in note for note in reporter.notes)


@pytest.mark.hostile
def test_what_a_run_can_not_do_is_refused_with_the_reason(changed) -> None:
    found = {one.setting: (one.state, one.text) for one in Steering(changed[1].path).read() if one.step == 2}
    assert found["loop.max_staleness"] == ("refused", (
        "loop.deterministic keeps the weights that each group began with: weights.keep is 20, and 20 groups at once "
        "need 22. Stop the run, and continue it with --weights.keep 22"))  # fmt: skip
    assert found["loop.group_size"][0] == "refused" and "These can: optimizer.lr," in found["loop.group_size"][1]
    assert found["loop.eval_every"] == ("applied", "it has this value already")


def test_a_value_that_a_resume_is_given_replaces_what_was_changed(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run")
    for step, before, value in ((1, 1e-3, 5e-4), (4, 5e-4, 2e-4)):
        record_change(folder.path, Change(step=step, setting="optimizer.lr", before=before, value=value))
    record_change(folder.path, Change(step=5, setting="loop.max_staleness", before=1, value=8))
    notes = list[str]()
    settings = ["loop.groups_per_step=3", "loop.deterministic=true", "generator.engine=native", "optimizer.lr=1e-3"]
    recipe = finish_recipe(apply_overrides({}, settings))[0]
    with folder:
        found = go_on(settle_served(recipe), folder, 3, ["optimizer.lr"], notes.append).recipe
    assert found.optimizer.lr == 1e-3 and found.loop.max_staleness == 1
    assert found.weights.keep == 29, "the weights of 27 groups will be needed after step 5"
    assert [str(one) for one in read_changes(folder.path)] == [
        "optimizer.lr 0.001 -> 0.0005", "optimizer.lr 0.0005 -> 0.001", "loop.max_staleness 1 -> 8",
    ]  # fmt: skip
    assert [note.partition(";")[0] for note in notes] == ["loop.max_staleness 1 -> 8, again after step 5"]
