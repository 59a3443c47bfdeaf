"""Recipes that ship with the package: found by name from any folder, listed, and copied whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.run.recipe_files import read_recipe_files
from agentgym.run.shipped_recipes import FOLDER, find_recipe, shipped_recipes


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "command", "found"),
    [
        ("qwen3_1.7b", "train", "grpo/qwen3_1.7b"),
        ("qwen3_1.7b", "sft", "sft/qwen3_1.7b"),
        ("apps/sft/qwen3_1.7b.yaml", "train", "sft/qwen3_1.7b"),
        ("gpus/eight", "train", "presets/gpus/eight"),
        ("warm_start", "train", "sft/warm_start"),
        ("dapo", "train", "presets/algorithms/dapo"),
    ],
)
def test_a_name_finds_its_recipe_in_any_folder(given: str, command: str, found: str) -> None:
    assert find_recipe(given, command) == FOLDER / f"{found}.yaml"
    assert read_recipe_files([given], command)[0]


def test_a_file_of_the_users_comes_before_a_shipped_one_and_can_extend_that(elsewhere: Path) -> None:
    Path("math.yaml").write_text("extends: [apps/grpo/math.yaml, gpus/eight]\nloop: {steps: 3}\n")
    mapping, where = read_recipe_files(["math.yaml"])
    assert mapping["loop"] == {"steps": 3} and where == "math.yaml"
    assert {**read_recipe_files(["grpo/math", "gpus/eight"])[0], "loop": {"steps": 3}} == mapping


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("qwen3_17b", r"no config file or shipped recipe 'qwen3_17b'\. Did you mean 'qwen3_1\.7b'"),
        ("dapo/mth", r"no config file or shipped recipe 'dapo/mth'\. Did you mean 'dapo/math'"),
        ("gpus", r"'gpus' is a folder of shipped recipes; give one of presets/gpus/eight, "),
        ("nothing.yaml", r"no config file 'nothing\.yaml'"),
    ],
)
def test_a_name_of_none_is_reported_with_the_nearest(given: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read_recipe_files([given])


def test_the_list_says_of_each_what_it_is_and_a_word_chooses(cli) -> None:
    rows = json.loads(cli("recipes", "--json").out)
    assert [row["name"] for row in rows] == list(shipped_recipes()) and all(row["about"] for row in rows)
    assert json.loads(cli("recipes", "Dr. GRPO", "--json").out)[0]["name"] == "presets/algorithms/dr_grpo"
    assert cli("recipes", "no such word").code == 2


def test_a_copy_has_what_it_extends_reads_the_same_and_overwrites_nothing(cli, elsewhere: Path) -> None:
    assert cli("recipes", "--copy", "qwen3_1.7b", "--folder", "mine").code == 0
    copied = {path.relative_to(elsewhere / "mine").as_posix() for path in (elsewhere / "mine").rglob("*.yaml")}
    assert copied == {"grpo/qwen3_1.7b.yaml", "presets/tasks/gsm8k.yaml", "presets/gpus/two.yaml"}
    assert read_recipe_files(["mine/grpo/qwen3_1.7b.yaml"])[0] == read_recipe_files(["qwen3_1.7b"])[0]
    end = cli("recipes", "--copy", "qwen3_1.7b", "--folder", "mine")
    assert end.code == 2 and "nothing is overwritten" in end.err
    Path("own.yaml").touch()
    assert cli("recipes", "--copy", "own.yaml").code == 2 and not Path("recipes").exists()
