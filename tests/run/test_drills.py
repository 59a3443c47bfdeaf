"""A short seed of benchmarks/chaos.py: five faults in one run, which is then whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chaos import Cell, drill

pytestmark = pytest.mark.hostile
STORM = (
    ("delay", "generator", "sampling"),
    ("kill", "generator", "update"),
    ("delay", "trainer", "publish"),
    ("kill", "generator", "save"),
    ("kill", "controller", "evaluation"),
)


def test_a_run_that_five_faults_hit_is_resumed_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.chaos.DELAY_S", 1.0)
    cells = [Cell(fault=fault, victim=victim, phase=phase) for fault, victim, phase in STORM]
    result = drill(cells, tmp_path, 0, {"generator.replicas": 1, "loop.steps": 12})
    assert result.faults == []
    assert (result.ended, result.resumes, len(result.moments)) == ("died of SIGKILL", 1, len(STORM))
