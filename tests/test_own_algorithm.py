"""An algorithm in a package of its own, installed for real: loss, advantage, buffer policy, rows, and a main."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "data" / "own_algorithm"
SETTINGS = ["loss.name=own_algorithm.algorithm:Capped", "advantage.name=own_algorithm.algorithm:FromBest"]
SETTINGS += ["loop.steps=2", "loop.groups_per_step=2", "loop.group_size=4", "rollout.max_turn_tokens=12"]
SETTINGS += ["generator.replicas=1", "logging.runs_dir=runs", "env.name=math"]
SETTINGS += ["rollout.temperature=2.0"]  # else the answers of a group may all be as long


def test_it_is_short() -> None:
    assert sum(len(file.read_text().splitlines()) for file in SOURCE.glob("own_algorithm/*.py")) < 150


@pytest.mark.slow
@pytest.mark.hostile
def test_it_samples_buffers_and_trains(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    shutil.copytree(SOURCE, tmp_path / "source")
    how = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet"]
    install = [sys.executable, "-m", "pip", "install", *how, "--target", "site", "./source"]
    subprocess.run(install, cwd=tmp_path, check=True, timeout=120)
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(12)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    site = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-m", "own_algorithm.main", *(f"--{word}" for word in SETTINGS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": site, "OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "hf")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (tmp_path / "runs").iterdir()
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == [1, 2]
    assert all(row["own/margin"] >= 0 for row in metrics)  # the policy of the package chose
    assert metrics[0]["own/ratio"] == pytest.approx(1.0, abs=0.01) and metrics[1]["train/trained_tokens"] > 0
    assert metrics[1]["train/grad_norm"] > 0
