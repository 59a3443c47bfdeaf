"""All checkpoints of a run on the same tasks: measured while it trains, or afterwards by one command."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import UserError
from agentgym.evals.checkpoints import Point
from agentgym.recipe import Recipe
from agentgym.run.checkpoint_curve import evaluate_checkpoints
from agentgym.run.settle import settle_sampling
from agentgym.run.train import train
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder, RunStatus
from tests.audited import audited

pytestmark = pytest.mark.hostile  # a run, and its evaluations
STEPS = [0, 1, 2]


@pytest.fixture(scope="module")
def measured(make_lab, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Recipe, RunFolder]:
    """A run that measured its checkpoints while it trained."""
    lab = make_lab(tmp_path_factory.mktemp("measured"))
    recipe = lab.recipe(
        "loop.steps=2", "eval.at_end=false", "eval.every_checkpoint=true", "optimizer.lr=5e-3",
        "optimizer.warmup_steps=0", "generator.engine=native", "generator.batch_invariant=true",
    )  # fmt: skip
    folder = lab.new_run(recipe)
    with folder:
        asyncio.run(train(recipe, folder, lab.reporter()))
        folder.set_status(RunStatus.DONE)
    return lab, recipe, folder


def played(folder: RunFolder, step: int) -> dict[str, object]:
    return {
        one.episode.episode_id: [turn.completion_ids for turn in one.episode.turns]
        for one in folder.read_episodes(step, evaluation=True)
    }


def curve(folder: Path, recipe: Recipe, reporter, steps=STEPS) -> list[Point]:
    with RunFolder.open(folder, for_writing=True) as opened:
        settled = settle_sampling(recipe, folder, reporter.note)
        return list(asyncio.run(evaluate_checkpoints(settled, opened, reporter, steps)).points)


class Killed(BaseException):
    pass


def test_training_and_the_command_give_one_curve_and_what_is_interrupted_goes_on(measured, tmp_path: Path) -> None:
    lab, recipe, trained = measured
    path = tmp_path / "run"
    shutil.copytree(trained.path, path)
    shutil.rmtree(path / "evals")

    def kill(text: str) -> None:
        if text.startswith("3 of 6") and not (path / "evals" / "step-000000.part.jsonl").exists():
            raise Killed  # in the middle of step 1

    with pytest.raises(BaseExceptionGroup):
        curve(path, recipe, lab.reporter(on_phase=kill))
    assert read_record(RunFolder.open(path), 0)["result"] and not read_record(RunFolder.open(path), 1)["result"]
    found = audited(path)
    assert not found.findings and "--every-checkpoint` goes on with it" in found.notes[0]
    reporter = lab.reporter()
    points = curve(path, recipe, reporter)
    assert {"1 of 3 checkpoints were measured before", "3 of 6 episodes were played before"} <= {*reporter.notes}
    assert [one.step for one in points] == STEPS and not audited(path).notes
    again = lab.reporter()
    assert curve(path, recipe, again) == points == curve(trained.path, recipe, lab.reporter())
    for step in STEPS:
        assert played(RunFolder.open(path), step) == played(trained, step), "by the weights of that step"
    assert played(trained, 0) != played(trained, 2)


def test_fewer_tasks_are_read_of_what_is_there_and_more_play_only_the_rest(measured, tmp_path: Path) -> None:
    lab, recipe, trained = measured
    path = tmp_path / "run"
    shutil.copytree(trained.path, path)
    few, more = (replace(recipe, eval=replace(recipe.eval, tasks=tasks)) for tasks in (4, 8))
    reporter = lab.reporter(on_phase=lambda text: pytest.fail(text) if "replicas" in text else None)
    [first, _] = curve(path, few, reporter, [0, 2])
    assert (first.num_tasks, first.num_episodes) == (4, 4)
    reporter = lab.reporter()
    [last] = curve(path, more, reporter, [2])
    assert last.num_tasks == 8 and "6 of 8 episodes were played before" in reporter.notes
    other = replace(recipe, eval=replace(recipe.eval, seed=7))
    with pytest.raises(
        UserError, match="an evaluation of step 0 with seed 1000003, not 7, which this one would replace"
    ):
        curve(path, other, lab.reporter())
