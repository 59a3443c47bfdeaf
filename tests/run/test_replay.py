"""A step that is trained again gives the figures that were recorded, bit for bit, and others where anything differs."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentgym.cli.jobs import Jobs, JobShell
from agentgym.cli.main import main
from agentgym.config import apply_overrides, to_mapping
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe, build_recipe
from agentgym.run.replay import Replay, plan_replay, replay
from agentgym.run.train import train
from agentgym.runs.files import read_json_lines, write_json_lines
from agentgym.runs.folder import RunFolder
from agentgym.runs.starts import record_start, start_of

STEPS = 4


@pytest.fixture(scope="module")
def recipe(make_lab) -> Recipe:
    settings = ("optimizer.lr=0.001", "advantage.name=mean_only", "loop.checkpoint_every=2", "loss.kl_coef=0.01")
    return make_lab.recipe(f"loop.steps={STEPS}", "eval.at_end=false", *settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, make_lab, recipe: Recipe) -> RunFolder:
    lab = make_lab(tmp_path_factory.mktemp("runs"))
    with lab.new_run(recipe) as folder:
        asyncio.run(train(recipe, folder, lab.reporter()))
        return folder


def again(folder: RunFolder, recipe: Recipe, step: int, lab, from_step: int | None = None, **settings) -> Replay:
    plan = plan_replay(folder, step, from_step)
    return asyncio.run(replay(plan, recipe, lab.reporter(), registry=PluginRegistry.discover(), **settings))


def test_every_step_is_equal_bit_for_bit_from_any_checkpoint_before_it(trained: RunFolder, recipe: Recipe, lab) -> None:
    found = again(trained, recipe, STEPS, lab, from_step=0)
    assert [step.step for step in found.steps] == [1, 2, 3, 4]
    assert found.is_equal and found.holds and found.same_machine and found.bound == 0
    keys = {figure.key for figure in found.steps[-1].figures}
    computed = {"train/loss", "train/grad_norm", "train/lr", "train/kl_ref"}
    assert computed | {"rollout/reward_mean", "loop/skipped_groups"} <= keys
    assert not [key for key in keys if key.startswith(("time/", "train/time/", "generator/"))]
    nearest = again(trained, recipe, STEPS, lab)
    assert nearest.plan.checkpoint == 2 and [step.step for step in nearest.steps] == [3, 4] and nearest.is_equal


@pytest.fixture
def altered(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy to damage."""
    shutil.copytree(trained.path, tmp_path / "copy")
    return RunFolder.open(tmp_path / "copy")


def alter_first_episode(folder: RunFolder, step: int, *, turn: Mapping[str, Any] | None = None, **row: Any) -> None:
    path = folder.path / "episodes" / f"step-{step:06d}.jsonl.gz"
    first, *others = read_json_lines(path)
    opening, *more = first["episode"]["turns"]
    episode = {**first["episode"], "turns": [{**opening, **(turn or {})}, *more]}
    write_json_lines(path, [{**first, **row, "episode": episode}, *others])


@pytest.mark.parametrize("what", ["logprob", "advantage", "token", "order"])
def test_anything_that_was_different_shows(altered: RunFolder, recipe: Recipe, lab, what: str) -> None:
    path = altered.path / "episodes" / "step-000003.jsonl.gz"
    first, *others = read_json_lines(path)
    turn = first["episode"]["turns"][0]
    if what == "logprob":
        alter_first_episode(altered, 3, turn={"logprobs": [turn["logprobs"][0] - 1e-3, *turn["logprobs"][1:]]})
    elif what == "advantage":
        alter_first_episode(altered, 3, advantage=first["advantage"] + 1e-3)
    elif what == "token":
        alter_first_episode(altered, 3, turn={"completion_ids": [7, *turn["completion_ids"][1:]]})
    else:  # of the batch: sums of floats in another order
        write_json_lines(path, [*others[::-1], first])
    found = again(altered, recipe, 4, lab)
    assert not found.steps[0].is_equal, "the step itself"
    assert not found.steps[1].is_equal, "and the next, whose weights differ"
    assert not found.holds, "on the run's own machine nothing may differ"
    if what == "order":
        assert all(figure.error < 1e-3 for step in found.steps for figure in step.figures)


def test_another_machine_may_differ_by_rounding_and_is_named(altered: RunFolder, recipe: Recipe, lab) -> None:
    [start] = read_json_lines(altered.path / "starts.jsonl")
    (altered.path / "starts.jsonl").write_text(json.dumps({**start, "machine": {**start["machine"], "torch": "2.9"}}))
    rows = list(read_json_lines(altered.path / "metrics.jsonl"))
    rows[3]["train/loss"] += 1e-6
    (altered.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = again(altered, recipe, 4, lab)
    assert not found.same_machine and found.bound == 1e-3 and found.holds and not found.is_equal
    strict = again(altered, recipe, 4, lab, bound=0.0)
    assert not strict.holds and [one.key for one in strict.steps[-1].beyond(0.0)] == ["train/loss"]
    rows[3]["rollout/reward_mean"] += 1e-9  # counted, not computed: no machine changes it
    (altered.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert not again(altered, recipe, 4, lab).holds


@pytest.mark.hostile
def test_another_loss_or_advantage_is_shown_beside_from_the_same_weights(
    trained: RunFolder, recipe: Recipe, lab
) -> None:
    def changed(*overrides: str) -> Replay:
        other = build_recipe(apply_overrides(to_mapping(recipe), overrides))
        found = again(trained, recipe, 4, lab, changed=other)
        assert found.is_equal, "what was recorded is compared as without it"
        assert found.changed is not None
        return found

    same = changed("loss.clip_low=0.2")
    recorded = {one.key: one.again for one in same.steps[-1].figures}
    assert {key: same.changed[key] for key in recorded} == recorded, "the same settings give the same figures"
    other = changed("loss.clip_low=0.01").changed
    assert (
        other["train/clip_share"] > recorded["train/clip_share"] and other["train/entropy"] == recorded["train/entropy"]
    )
    scaled = changed("advantage.name=std_normalized").changed
    assert scaled["train/grad_norm"] != recorded["train/grad_norm"]
    assert scaled["train/mismatch_kl"] == recorded["train/mismatch_kl"], "from the same weights"


def test_what_is_missing_is_named(altered: RunFolder, recipe: Recipe) -> None:
    with pytest.raises(UserError, match="no figures of step 9; finished are: steps 1 to 4"):
        plan_replay(altered, 9)
    with pytest.raises(UserError, match="--from-step: no checkpoint of step 3 before step 4"):
        plan_replay(altered, 4, 3)
    (altered.path / "episodes" / "step-000003.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"checkpoint before it is of step 2, and no episodes are saved of step\(s\) 3"):
        plan_replay(altered, 4)
    assert plan_replay(altered, 2).checkpoint == 0
    for step in (0, 2):
        (altered.checkpoint_dir(step) / "position.json").unlink()
    with pytest.raises(UserError, match="no finished checkpoint before it"):
        plan_replay(altered, 4)
    altered.save_config({"sft": {}})
    with pytest.raises(UserError, match="run of `agentgym sft`"):
        plan_replay(altered, 4)


def test_a_step_belongs_to_the_start_that_trained_it(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "one") as run:
        run.save_config({"loop": {"steps": 1}})
        assert start_of(run, 3).config == {"loop": {"steps": 1}} and not start_of(run, 3).machine, "an older version's"
        for step, lr in ((0, 1.0), (40, 2.0), (20, 3.0)):  # the last one undid the steps from 21 on
            record_start(run, step=step, config={"optimizer": {"lr": lr}}, machine={"device": "cpu"})
        starts = {step: start_of(run, step).config["optimizer"]["lr"] for step in (1, 20, 21, 40, 41, 90)}
        assert starts == {1: 1.0, 20: 1.0, 21: 3.0, 40: 3.0, 41: 3.0, 90: 3.0}


def command(folder: RunFolder, *words: str) -> tuple[int, str]:
    """How `agentgym runs replay` ends, and what it prints."""
    out = io.StringIO()
    shell = JobShell(out=out, err=io.StringIO(), jobs=Jobs, plugins=PluginRegistry.discover)
    return main(["runs", "replay", str(folder.path), "--trust", *words], shell), out.getvalue()


@pytest.mark.hostile
def test_the_command_shows_the_figures_and_exits_with_1_where_they_differ(altered: RunFolder) -> None:
    code, printed = command(altered, "--step", "4", "--loss.name", "reinforce", "--reward", "success")
    assert code == 0 and "with these settings" in printed and "bit for bit" in printed, printed
    found = json.loads(command(altered, "--step", "1", "--json")[1])
    assert found["equal"] and [step["step"] for step in found["steps"]] == [1]
    [first, *_] = read_json_lines(altered.path / "episodes" / "step-000002.jsonl.gz")
    alter_first_episode(altered, 2, advantage=first["advantage"] + 0.5)
    code, printed = command(altered, "--step", "3", "--from-step", "0")
    assert code == 1 and "3 steps: NOT what was recorded" in printed and "step 1: all" in printed, printed
