"""A package of somebody else, installed for real: everything it brings works, and nothing of ours knows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SOURCE = Path(__file__).parent / "data" / "third_party"
RIGHT, WRONG = "def f(x): return 3 * x + 4", "def f(x): return 3 * x"


@dataclass(frozen=True)
class Installed:
    """A working folder for programs that find the package."""

    folder: Path

    def __call__(self, module: str, *words: str) -> str:
        """What the program prints. Its end must be 0."""
        site = os.pathsep.join([str(self.folder / "site"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": site.rstrip(os.pathsep), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def agentgym(self, *words: str) -> str:
        return self("agentgym.cli.main", *words)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("third_party")
    shutil.copytree(SOURCE, folder / "source")
    run = Installed(folder)
    how = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    run("pip", "install", *how, "--target", "site", "./source")
    shutil.move(folder / "source" / "kata_tests", folder)
    shutil.rmtree(folder / "source")  # what was installed has to do
    return run


def test_it_is_short() -> None:
    assert sum(len(path.read_text().splitlines()) for path in SOURCE.rglob("*.*") if path.suffix != ".pyc") <= 600


def test_its_command_is_listed_and_judges_by_the_public_grader(installed: Installed) -> None:
    assert "judge a function for one of the tasks of kata" in installed.agentgym("--help")
    for code, said in ((RIGHT, "All cases pass.\n"), (WRONG, "returned 0, expected 4\n")):
        (installed.folder / "answer.py").write_text(code)
        assert installed.agentgym("kata", "3-4", "answer.py") == said


@pytest.mark.hostile
def test_its_tool_format_is_proved_and_its_agent_is_checked_as_ours_are(installed: Installed) -> None:
    [proof] = json.loads(installed.agentgym("tools", "prove", "builtin:tiny", "--format", "tags", "--json"))["formats"]
    assert proof["proved"] and proof["writes_alike"]
    assert "works             yes" in installed.agentgym("agents", "check", "drafts")


@pytest.mark.hostile
def test_what_it_brings_trains_together(installed: Installed) -> None:
    settings = {
        "--sandbox.name": "plain",
        "--sandbox.options.trusted": "true",
        "--model.tool_format": "tags",
        "--loss.name": "pulled",
        "--loss.strength": "0.2",
        "--advantage.name": "signs",
        "--advantage.margin": "0.001",
        "--logging.sinks": "[report]",
        "--logging.episodes_every": "1",
        "--loop.steps": "2",
        "--loop.groups_per_step": "2",
        "--loop.group_size": "4",
        "--generator.replicas": "1",
        "--eval.at_end": "false",
        "--rollout.cut_turns": "score",
        "--rollout.max_turn_tokens": "16",
        "--name": "run",
    }
    installed.agentgym("train", "--env", "kata", "--plain", *(word for pair in settings.items() for word in pair))
    run = installed.folder / "runs" / "run"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["kata/pull_max"] ** 2 >= 0.999 * row["kata/pull"]
        assert 0 < row["reward/short_mean"] < 1
        assert row["sandbox/calls"] > 0
    assert any(row["rollout/tool_calls"] for row in rows)  # read by its format, as the policy that ships writes them
    assert rows[-1]["kata/pull"] > 0  # the first step's tokens are of the trainer's own weights
    assert json.loads((run / "sandbox.json").read_text())["backend"] == "plain"
    report = (run / "report.md").read_text()
    assert "- step 2: rollout/reward_mean" in report and "## Step 2, kata/" in report


@pytest.mark.hostile
def test_what_it_brings_keeps_the_promises_of_its_kind(installed: Installed) -> None:
    """TestKata plays the environment through its sandbox a hundred times."""
    said = installed("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "kata_tests")
    assert " passed" in said
