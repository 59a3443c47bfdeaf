"""`agentgym sft`: what it imitates, its recipe and folder, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym.config import build
from agentgym.errors import InfraError
from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder, RunStatus


def sft(cli, *words: str):
    return cli("sft", "--set", "logging.sinks=[]", *words)


def test_flags_file_and_overrides_make_the_recipe_that_the_folder_keeps(cli) -> None:
    Path("r.yaml").write_text("sft: {epochs: 1, batch_size: 8}\nenv: {name: other}\n")
    words = "r.yaml --data a.jsonl --data b.jsonl --from runs/x --min-reward 0.5 --env counting --seed 4 --name one"
    end = sft(cli, *words.split(), "--sft.batch_size", "16")
    assert end.code == 0, end.err
    [(recipe, resume)] = cli.jobs.tuned
    assert recipe.sft.data == ("a.jsonl", "b.jsonl") and recipe.sft.episodes == ("runs/x",) and not resume
    assert (recipe.sft.min_reward, recipe.sft.epochs, recipe.sft.batch_size) == (0.5, 1.0, 16)
    assert (recipe.env.name, recipe.sft.seed, recipe.trainer.seed) == ("counting", 4, 4)
    folder = RunFolder.open("runs/one")
    assert build(Recipe, folder.load_config()) == recipe
    assert folder.load_sources()["sft.epochs"] == "r.yaml" and folder.load_sources()["sft.data"] == "command line"
    assert folder.status().status is RunStatus.DONE
    assert (folder.path / "curve.png").read_bytes().startswith(b"\x89PNG"), "of the loss"
    assert (
        "imitates     a.jsonl, b.jsonl, runs/x (reward at least 0.5)" in end.out and "step 4/4  loss 0.250" in end.out
    )


def test_the_learning_rate_is_that_of_sft_for_the_models_size(cli) -> None:
    assert sft(cli, "--data", "a.jsonl", "--name", "one").code == 0
    assert cli.jobs.tuned[0][0].optimizer.lr == 1e-3
    assert sft(cli, "--data", "a.jsonl", "--optimizer.lr", "3e-5").code == 0
    assert cli.jobs.tuned[1][0].optimizer.lr == 3e-5


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "command line: sft has nothing to imitate"),
        (["--oracle", "5"], "sft.oracle_tasks needs an environment"),
        (["--data", "a", "--env", "countin"], "Did you mean 'counting'"),
        (["--data", "a", "--loop.steps", "5"], "the section 'loop' is for reinforcement learning"),
        (["--data", "a", "--sft.epoch", "5"], "Did you mean 'sft.epochs'"),
        (["--data", "a", "--sft.epochs", "0"], "sft.epochs is 0; give more than 0, or sft.steps"),
        (["--data", "a", "--loss.kl_coef", "0.1", "--loss.name", "grpo"], "loss needs a reference model"),
        (["--data", "a", "--set", "sft.epochs=.inf"], "sft.epochs is inf"),
        (["--from", "runs/one", "--min-reward", "nan"], "sft.min_reward is nan"),
        (["--from-step", "3", "--data", "a"], "give the run with --resume"),
        (["--data", "a", "--resume", "runs/one"], "so --data cannot be given"),
        (["--resume", "runs/one"], "no run folder 'runs/one'"),
        (["--data", "a", "--model.path", "./nowhere"], "no model folder './nowhere'"),
    ],
)
def test_a_mistake_is_named_and_leaves_no_folder(cli, words: list[str], expected: str) -> None:
    end = sft(cli, *words)
    assert end.code == 2 and expected in end.err
    assert not list(Path().glob("runs/*"))


def test_a_dry_run_shows_config_sources_and_plan_and_starts_nothing(cli) -> None:
    end = sft(cli, "--env", "counting", "--oracle", "50", "--dry-run")
    assert end.code == 0 and cli.jobs.tuned == [] and not Path("runs").exists()
    assert "oracle_tasks: 50" in end.out and "imitates     50 tasks that counting solves itself" in end.out
    assert "the model: 525,376 parameters: optimizer.lr" in end.out or "parameters: optimizer.lr" in end.out
    shown = json.loads(sft(cli, "--data", "a", "--dry-run", "--json").out)
    assert shown["config"]["sft"]["data"] == ["a"] and not shown["resume"]


def test_a_run_goes_on_with_its_own_config(cli) -> None:
    assert sft(cli, "--data", "a", "--name", "one", "--sft.steps", "2").code == 0
    end = cli("sft", "--resume", "runs/one", "--sft.steps", "5")
    assert end.code == 0, end.err
    recipe, resume = cli.jobs.tuned[1]
    assert resume and recipe.sft.steps == 5 and recipe.sft.data == ("a",)
    assert RunFolder.open("runs/one").load_sources()["sft.steps"] == "command line"


def test_each_command_sends_the_others_runs_back(cli) -> None:
    assert sft(cli, "--data", "a", "--name", "tuned").code == 0
    assert cli.train("--name", "trained", "--loop.steps", "1").code == 0
    end = cli("train", "--resume", "runs/tuned")
    assert end.code == 2 and "agentgym sft --resume runs/tuned" in end.err
    end = cli("sft", "--resume", "runs/trained")
    assert end.code == 2 and "agentgym train --resume runs/trained" in end.err


def test_its_checkpoints_are_measured_with_the_runs_settings(cli) -> None:
    assert sft(cli, "--data", "a", "--env", "counting", "--name", "tuned", "--eval.tasks", "7").code == 0
    checkpoint = Path("runs/tuned/checkpoints/step-000006/hf")
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text("{}")
    end = cli("eval", "runs/tuned")
    assert end.code == 0, end.err
    [recipe] = cli.jobs.evaluated
    assert (recipe.env.name, recipe.eval.tasks, type(recipe.loss).__name__) == ("counting", 7, "Grpo")


def test_a_failed_run_says_how_to_go_on(cli) -> None:
    async def fail(recipe, folder, reporter) -> None:
        folder.save_state({"position": {"step": 1, "next_group": 0}})
        raise InfraError("the trainer is gone")

    cli.jobs.work = fail
    end = sft(cli, "--data", "a", "--name", "one")
    assert end.code == 1 and "the trainer is gone" in end.err and "agentgym sft --resume runs/one" in end.err
    assert RunFolder.open("runs/one").status().status is RunStatus.FAILED


def test_help_lists_every_field(cli, capsys) -> None:
    assert cli("sft", "--help-recipe").code == 0
    fields = capsys.readouterr().out
    assert "sft.max_skipped_share" in fields and "trainer.seq_len" in fields and "loop." not in fields
