"""Environment packages of the real library verifiers, of both interfaces: evaluated, and trained on."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.testing import CharacterTokenizer
from agentgym.types import Outcome
from agentgym_envs.verifiers import Verifiers
from tests.playing_packages import play
from tests.trained_runs import train_two_steps

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "tests" / "data" / "verifiers_packages"
BIN = ROOT / ".venv-verifiers" / "bin"
WORDS = ("yes", "no", "a longer answer")

OPTIONS = {"python": str(BIN / "python"), "variables": ["PYTHONPATH"]}

pytestmark = pytest.mark.hostile
BOTH = pytest.mark.parametrize("package", ["hash_words", "hash_tasks"])


@pytest.fixture(autouse=True)
def variables(monkeypatch, request):
    """The packages are found, and `uv`, which runs the programs of verifiers."""
    is_older = "hash_tasks" not in request.node.name
    folders = [PACKAGES, *([BIN.parent / "older"] if is_older else [])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")


def own_rewards(package, task):
    command = [BIN / "python", PACKAGES / "own_rewards.py", package, str(task.answer["number"]), *WORDS]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


@BOTH
async def test_a_package_gives_the_rewards_that_verifiers_gives_for_the_same_words(package):
    with closing(Verifiers(environment=package, **OPTIONS)) as environment:
        task = next(iter(environment.tasks("test")))
        episodes = [(await play(environment, word, task=task))[0] for word in WORDS]
    own = own_rewards(package, task)
    assert [episode.outcome for episode in episodes] == [Outcome.SCORED] * len(WORDS), episodes[0].error
    assert [episode.reward for episode in episodes] == own and len({*own}) == len(WORDS)
    turns = 2 if package == "hash_words" else 1
    assert [len(episode.turns) for episode in episodes] == [turns] * len(WORDS)


async def test_rewards_that_compare_a_group_are_those_of_verifiers_and_alone_those_of_a_group_of_one():
    with closing(Verifiers(environment="group_words", group_rewards=True, **OPTIONS)) as environment:
        task = next(iter(environment.tasks("test")))
        episodes = await play(environment, *WORDS, count=len(WORDS), task=task, group=True)
    assert [episode.outcome for episode in episodes] == [Outcome.SCORED] * len(WORDS), episodes[0].error
    own = {word: pytest.approx(reward) for word, reward in own_rewards("group_words", task)}
    said = [CharacterTokenizer().decode(one.turns[0].completion_ids).removesuffix("<|im_end|>") for one in episodes]
    assert dict(zip(said, (one.reward for one in episodes), strict=True)) == own
    changed = {word: one.rewards["compared"] for word, one in zip(said, episodes, strict=True)}
    assert changed == {word: 0.0 if word == max(WORDS, key=len) else pytest.approx(-0.25) for word in WORDS}
    refused = pytest.raises(UserError, match=r"compares the rollouts of a group, in longest; .*group_rewards=true")
    with closing(Verifiers(environment="group_words", **OPTIONS)) as environment, refused:
        next(iter(environment.tasks("test")))


@BOTH
def test_two_steps_are_trained_on_what_was_sampled_for_a_package(package, tmp_path):
    settings = {
        "env": f"verifiers:{package}", "env.options.python": str(BIN / "python"),
        "env.options.variables": "[PYTHONPATH]", "loop.group_size": "4", "rollout.max_turn_tokens": "24",
    }  # fmt: skip
    for step in train_two_steps(settings, tmp_path):
        assert step["train/trained_tokens"] == round(step["rollout/completion_tokens_mean"] * step["rollout/episodes"])
