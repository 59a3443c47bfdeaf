"""Environment packages of the real library verifiers, of both interfaces: evaluated, and trained on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentgym.types import Outcome
from agentgym_envs.verifiers import Verifiers
from tests.playing_packages import play

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
        "env.options.variables": "[PYTHONPATH]",
        "loop.steps": "2", "loop.groups_per_step": "1", "loop.group_size": "4", "loop.max_staleness": "0",
        "loop.eval_every": "0", "eval.at_end": "false", "rollout.max_turn_tokens": "24", "rollout.temperature": "1.5",
        "logging.sinks": "[]",
    }  # fmt: skip
    done = agentgym(["train", *(word for key, value in settings.items() for word in (f"--{key}", value))], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [run] = (tmp_path / "runs").iterdir()
    audit = agentgym(["runs", "audit", str(run)], tmp_path)
    assert audit.returncode == 0, audit.stdout
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if "time/step_s" in step]
    assert len(trained) == 2 and all(step["train/mismatch_max"] < 1e-3 for step in trained)
    for step in trained:
        assert step["train/trained_tokens"] == round(step["rollout/completion_tokens_mean"] * step["rollout/episodes"])


def agentgym(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("agentgym")), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
