"""A run whose trainer runs out of memory ends, and goes on once that is mended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.runs.folder import RunFolder, RunStatus

pytestmark = pytest.mark.hostile

LOSS = """
from dataclasses import dataclass
import torch
from agentgym.rl.losses.grpo import Grpo

@dataclass(frozen=True, slots=True, kw_only=True)
class Full(Grpo):
    def __call__(self, tokens, version):
        if version == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.42 GiB.")
        return Grpo.__call__(self, tokens, version)
"""


def agentgym(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentgym.cli.main", "train", *words, "--plain"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def test_it_ends_with_a_report_and_is_resumed(lab, tmp_path: Path) -> None:
    (tmp_path / "full_loss.py").write_text(LOSS)
    small = [f"--{override}" for override in (*lab.small, "loop.max_staleness=0", "eval.at_end=false")]
    ended = agentgym(tmp_path, "--name", "one", "--loss.name", "full_loss:Full", *small)
    folder = RunFolder.open(tmp_path / "runs" / "one")
    status = folder.status()
    assert ended.returncode == 1 and status.status is RunStatus.FAILED, ended.stderr
    assert "is out of memory on the GPU: it tried to allocate 7.42 GiB" in status.reason
    assert "trainer.0 (rank 0, process " in ended.stderr and "trainer.activation_checkpoint (none) to " in ended.stderr
    assert "agentgym train --resume runs/one" in ended.stderr
    assert "is lost and starts again" not in (folder.path / "events.log").read_text()
    assert [row.step for row in folder.read_metrics()] == [1, 2]

    fields = ("--loss.name", "grpo", "--trainer.rows_per_microbatch", "1", "--trainer.activation_checkpoint", "full")
    resumed = agentgym(tmp_path, "--resume", "runs/one", *fields)
    assert resumed.returncode == 0, resumed.stderr
    assert folder.status().status is RunStatus.DONE and [row.step for row in folder.read_metrics()] == [1, 2, 3]
