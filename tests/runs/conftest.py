"""A run without a fault, as the auditor sees it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from view_runs import episode, write_step

from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder, RunStatus

STEPS, GROUPS = 3, 3  # groups of a step, one of them skipped


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    with RunFolder.create(tmp_path, "whole") as folder:
        folder.save_config({"loop": {"group_size": 4, "max_staleness": 1}, "eval": {"at_end": True}})
        for step in range(1, STEPS + 1):
            write_step(folder, step)
        for step in (0, 2, 3):
            _checkpoint(folder.checkpoint_dir(step), step)
        for step in (0, 3):
            files, setup = EvaluationFiles(folder, step), {"num_tasks": 2, "samples_per_task": 2}
            files.begin(setup, resume=False)
            files.save_episodes([[episode(task, sample, success=True) for sample in (0, 1)] for task in (0, 1)])
            files.save_result(setup, {"success": 1.0})
        folder.save_state({"position": {"step": 3, "next_group": 9}})
        folder.save_comparison({"steps": 3})
        folder.set_status(RunStatus.DONE)
    yield folder.path


def _checkpoint(path: Path, step: int) -> None:
    (path / "trainer").mkdir(parents=True)
    (path / "trainer" / "state").write_bytes(b"12345678")
    manifest = {"step": step, "files": {"state": [8, 0]}}
    (path / "trainer" / "manifest.json").write_text(json.dumps(manifest))
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (path / "hf").mkdir()
    (path / "hf" / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    (path / "position.json").write_text(json.dumps({"step": step, "next_group": step * GROUPS}))


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No engine is found: asking it takes a while, and its containers may be of other tests of this process."""
    monkeypatch.setenv("PATH", str(tmp_path))
