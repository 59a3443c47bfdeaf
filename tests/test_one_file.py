"""The public API, and an environment of one file: named by its path, trained and measured without packaging."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import agentgym

FILE = Path(__file__).parent / "data" / "repeat_number.py"
ENV = f"{FILE}:RepeatNumber"
SMALL = {
    "loop": {"steps": 2, "groups_per_step": 2, "group_size": 4},
    "eval": {"tasks": 3, "samples_per_task": 1},
    "generator": {"replicas": 1},
    "logging": {"sinks": []},
    "launcher": {"name": "in_process:InProcess"},
}
EXPORTS = """
    Agent AgentContext AgentFailed AssertCase CallCase Environment Episode EpisodeContext FileRefused GradeRequest
    InfraError Json LimitHit Limits MalformedCall Message MetricSink Outcome Reduce Reply Reward RunResult RunStatus
    Sandbox SandboxSpec Session Split StdioCase Stop Task ToolCall ToolError ToolResult ToolTrace Toolbox Tools
    UserError Verdict evaluate hookimpl metric record_metric reward run_loop services sft tool train
"""


def python(code: str, folder: Path, *, timeout: int = 240) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FILE.parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_gym_exports_what_authors_write_and_nothing_else() -> None:
    assert sorted(agentgym.__all__) == sorted(EXPORTS.split())
    assert all(hasattr(agentgym, name) for name in agentgym.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        agentgym.trian  # noqa: B018


def test_the_file_has_25_lines_and_imports_from_the_gym_alone() -> None:
    text = FILE.read_text()
    assert len(text.splitlines()) <= 25
    assert [line for line in text.splitlines() if "import" in line] == [
        "from agentgym import Environment, Reply, Task, reward"
    ]


def agentgym_run(path: Path) -> list[dict[str, float | None]]:
    """The rewards of the episodes that a run trained on."""
    from agentgym.runs.folder import RunFolder

    folder = RunFolder.open(path)
    return [saved.episode.rewards for step in folder.episode_steps() for saved in folder.read_episodes(step)]


@pytest.mark.hostile
def test_it_is_trained_and_measured_from_python_and_beside_a_running_loop(tmp_path: Path) -> None:
    """In a process of its own: as a script whose class no other process can import, and as in a notebook."""
    code = f"""
import asyncio, json, agentgym
{FILE.read_text()}
small = {SMALL!r}
async def notebook():
    return agentgym.train(RepeatNumber, name="nb", **small)
trained = asyncio.run(notebook())
measured = agentgym.evaluate("builtin:tiny", RepeatNumber, rewards=["short"], **small)
print(json.dumps([trained.steps, trained.last.num_episodes, measured.num_episodes, measured.reward_mean]))
"""
    out = python(code, tmp_path)
    steps, in_training, measured, reward_mean = json.loads(out.splitlines()[-1])
    assert (steps, in_training, measured) == (2, 3, 3) and 0 < reward_mean <= 0.1
    assert "'short' is defined in a script or notebook" in out
    rewards = agentgym_run(tmp_path / "runs" / "nb")
    assert all(set(one) == {"success", "short"} and one["short"] is not None for one in rewards)


def test_mistakes_from_python_name_what_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Inside(agentgym.Environment):
        def tasks(self, split, seed=0):  # type: ignore[no-untyped-def]
            return iter(())

    with pytest.raises(agentgym.UserError, match="Did you mean 'loop'"):
        agentgym.train(ENV, lop={"steps": 1})
    with pytest.raises(agentgym.UserError, match="Did you mean 'RepeatNumber'"):
        agentgym.train(f"{FILE}:RepeatNumbr")
    with pytest.raises(agentgym.UserError, match="is an object; give a name, an import path, a class"):
        agentgym.evaluate("builtin:tiny", Inside())  # type: ignore[arg-type]
    with pytest.raises(agentgym.UserError, match="define it at the top level of the file"):
        agentgym.train(Inside)
    with pytest.raises(agentgym.UserError, match="Did you mean 'short'"):
        agentgym.train(ENV, rewards=["shrt"])
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_beside_a_running_loop_ends_the_job_and_waits_for_its_cleaning_up() -> None:
    from agentgym.cli.script import run_anywhere

    cleaned = []

    async def job() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def notebook() -> None:
        run_anywhere(job(), print)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(notebook())
    assert cleaned == [True]
