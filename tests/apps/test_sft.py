"""The SFT app: honest demonstrations, and a folder that loads at its end."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from agentgym_envs.code_exec.operations import OPERATIONS, source
from agentgym_envs.code_exec.procedural import pipeline

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _apps_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # apps are no part of the installed package


def run_app(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "apps.sft", "--out", str(out), *options],
        cwd=ROOT,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_demonstrations_alternate_and_come_from_the_train_split() -> None:
    from apps.sft.demonstrations import DemonstrationConfig, demonstrations

    config = DemonstrationConfig()
    for index, messages in enumerate(islice(demonstrations(config), 200)):
        roles = [message["role"] for message in messages]
        assert roles in (["user", "assistant"], ["user", "assistant", "user", "assistant"])
        made = pipeline("train", f"demonstration/0/{index}", config.weights)
        assert made.split == "train" and made.request in messages[0]["content"]
        right = source(made.steps, "f")
        if len(messages) == 4:
            assert messages[1]["content"] != right
            assert messages[2]["content"].startswith("f([") and ", expected " in messages[2]["content"]


def test_the_shares_of_mistakes_are_those_of_the_config() -> None:
    from apps.sft.demonstrations import HABITS, DemonstrationConfig, demonstrations

    assert set(HABITS) | set(HABITS.values()) <= set(OPERATIONS)
    for config, low, high in (
        (DemonstrationConfig(mistake_share=0.0, habit_share=0.0), 1.0, 1.0),
        (DemonstrationConfig(mistake_share=1.0, habit_share=1.0, weights={1: 1.0}), 0.0, 0.02),
        (DemonstrationConfig(), 0.2, 0.5),
    ):
        right = 0
        for index, messages in enumerate(islice(demonstrations(config), 300)):
            made = pipeline("train", f"demonstration/0/{index}", config.weights)
            right += messages[1]["content"] == source(made.steps, "f")
        assert low <= right / 300 <= high


def test_a_wrong_option_ends_with_2_and_names_the_nearest(tmp_path: Path) -> None:
    ended = run_app(tmp_path, "--set", "stps=3")
    assert ended.returncode == 2 and "Did you mean 'steps'" in ended.stderr


@pytest.mark.hostile
def test_the_same_recipe_gives_the_same_policy_and_it_loads(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        options = ("steps=2", "conversations_per_step=4", "tokenizer_conversations=400", "trainer.threads=1")
        ended = run_app(tmp_path / name, *(word for option in options for word in ("--set", option)))
        assert ended.returncode == 0, ended.stderr
        folder = tmp_path / name / "policy"
        files = sorted(folder.iterdir())
        digests.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
    assert digests[0] == digests[1]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer) == 640
