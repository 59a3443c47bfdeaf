"""A package of somebody else, installed for real: everything it brings works, and nothing of ours knows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parent / "data" / "third_party"
Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def agentgym(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program where the package is installed, in a folder that is also its working folder."""
    folder = tmp_path_factory.mktemp("third_party")
    shutil.copytree(SOURCE, folder / "source")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", "site", "./source"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"}

    def run(*words: str, module: str = "agentgym.cli.main") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *words]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    run("--disable-pip-version-check", *install, module="pip")
    shutil.rmtree(folder / "source")  # what was installed has to do
    return run


def test_it_is_listed_without_import_and_its_command_runs(agentgym: Program) -> None:
    assert "report how long a text is" in agentgym("--help").stdout
    assert agentgym("even", "four").stdout == "4: even\n"


def test_what_it_brings_trains_together(agentgym: Program) -> None:
    words = {
        "--loop.steps": "2",
        "--loop.groups_per_step": "2",
        "--loop.group_size": "4",
        "--eval.tasks": "2",
        "--rollout.cut_turns": "score",
        "--rollout.max_turn_tokens": "16",
        "--loss.name": "pulled",
        "--loss.strength": "0.2",
        "--advantage.name": "signs",
        "--advantage.margin": "0.001",
        "--logging.sinks": "[]",
        "--runs-dir": "runs",
        "--name": "even",
    }
    done = agentgym("train", "--env", "even", "--plain", *(word for pair in words.items() for word in pair))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["even/pull_max"] ** 2 >= row["even/pull"] > 0
        assert 0 < row["reward/brevity_mean"] < 1
        assert row["sandbox/calls"] > 0
    assert json.loads((run / "sandbox.json").read_text())["backend"] == "ruler"
