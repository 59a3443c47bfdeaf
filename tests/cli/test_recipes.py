"""The recipes that ship in apps/grpo."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.cli.recipes import check_names, plan
from agentgym.config import build, describe, read_yaml
from agentgym.hooks import PluginRegistry
from agentgym.jobs.layers import layered
from agentgym.recipe import Recipe

FOLDER = Path(__file__).parents[2] / "apps" / "grpo"
FILES = sorted(FOLDER.glob("*.yaml"))


def recipe(name: str) -> Recipe:
    given = read_yaml(FOLDER / name)
    return build(Recipe, layered(given)[0], name)


def default() -> Recipe:
    """What a command without a recipe does."""
    return build(Recipe, layered({})[0])


def test_all_recipes_are_here() -> None:
    names = {path.name for path in FILES}
    assert names >= {
        "code_exec_tiny.yaml", "math_tiny.yaml", "code_exec_sync.yaml", "qwen3_0.6b_two_gpus.yaml",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_recipe_builds_and_names_only_what_there_is(path: Path) -> None:
    made = recipe(path.name)
    check_names(made, PluginRegistry.discover())
    assert made.rollout.max_episode_tokens <= min(made.generator.max_model_len, made.trainer.seq_len)
    assert plan(made)


def test_the_tiny_recipe_is_the_default_with_every_field_written_out() -> None:
    assert recipe("code_exec_tiny.yaml") == default(), (
        "a default changed: write it into code_exec_tiny.yaml too"
    )
    written = read_yaml(FOLDER / "code_exec_tiny.yaml")
    for info in describe(Recipe):
        section, _, name = info.key.partition(".")
        value = written[section]
        assert isinstance(value, dict) and (not name or name in value), f"{info.key} is not written out"


def test_the_synchronous_recipe_differs_from_the_default_in_staleness_alone() -> None:
    import dataclasses

    made = recipe("code_exec_sync.yaml")
    assert dataclasses.replace(made, loop=dataclasses.replace(made.loop, max_staleness=1)) == default()
    assert made.loop.max_staleness == 0


def test_the_two_gpu_recipe_keeps_trainer_and_generator_apart() -> None:
    made = recipe("qwen3_0.6b_two_gpus.yaml")
    assert made.model.random_weights and made.loop.steps == 5 and made.generator.engine == "vllm"
    assert not set(made.trainer.gpus) & set(made.generator.gpus)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dry_run_of_every_recipe_works(cli, path: Path) -> None:
    cli.plugins = PluginRegistry.discover
    end = cli("train", str(path), "--dry-run")
    assert end.code == 0, end.err
    assert "Nothing was started" in end.out
