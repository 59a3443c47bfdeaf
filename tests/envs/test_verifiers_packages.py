"""Environment packages of the real library verifiers, of both interfaces: evaluated, and trained on."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from agentgym.types import Outcome
from agentgym_envs.verifiers import Verifiers
from tests.playing_packages import play
from tests.trained_runs import train_two_steps

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "tests" / "data" / "verifiers_packages"
BIN = ROOT / ".venv-verifiers" / "bin"
WORDS = ("yes", "no", "a longer answer")

pytestmark = [pytest.mark.hostile, pytest.mark.parametrize("package", ["hash_words", "hash_tasks"])]


@pytest.fixture(autouse=True)
def variables(monkeypatch, package):
    """The packages are found, and `uv`, which runs the programs of verifiers."""
    folders = [PACKAGES, *([BIN.parent / "older"] if package == "hash_words" else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")


async def test_a_package_gives_the_rewards_that_verifiers_gives_for_the_same_words(package):
    options = {"python": str(BIN / "python"), "variables": ["PYTHONPATH"]}
    with closing(Verifiers(environment=package, **options)) as environment:
        task = next(iter(environment.tasks("test")))
        episodes = [(await play(environment, word, task=task))[0] for word in WORDS]
    row = str(task.answer["number"])
    command = [BIN / "python", PACKAGES / "own_rewards.py", package, row, *WORDS]
    own = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    assert [episode.outcome for episode in episodes] == [Outcome.SCORED] * len(WORDS), episodes[0].error
    assert [episode.reward for episode in episodes] == own and len({*own}) == len(WORDS)
    turns = 2 if package == "hash_words" else 1
    assert [len(episode.turns) for episode in episodes] == [turns] * len(WORDS)


def test_two_steps_are_trained_on_what_was_sampled_for_a_package(package, tmp_path):
    settings = {
        "env": f"verifiers:{package}", "env.options.python": str(BIN / "python"),
        "env.options.variables": "[PYTHONPATH]", "loop.group_size": "4", "rollout.max_turn_tokens": "24",
    }  # fmt: skip
    for step in train_two_steps(settings, tmp_path):
        assert step["train/trained_tokens"] == round(step["rollout/completion_tokens_mean"] * step["rollout/episodes"])
