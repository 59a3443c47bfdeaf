"""Trains with the command line, and holds the run to the ledger: its audit, and that what was sampled is trained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.runs.folder import RunFolder

TWO_STEPS: Mapping[str, str] = {
    "loop.steps": "2", "loop.groups_per_step": "1", "loop.max_staleness": "0", "loop.eval_every": "0",
    "eval.at_end": "false", "rollout.temperature": "1.5", "logging.sinks": "[]",
}  # fmt: skip


def train_two_steps(settings: Mapping[str, str], folder: Path) -> list[dict[str, Any]]:
    """The metrics of both steps, each of which trained on something it had sampled, with matching probabilities."""
    given = {**TWO_STEPS, **settings}
    done = _agentgym(["train", *(word for key, value in given.items() for word in (f"--{key}", value))], folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [run] = (folder / "runs").iterdir()
    audit = _agentgym(["runs", "audit", str(run)], folder)
    assert audit.returncode == 0, audit.stdout
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if "time/step_s" in step]
    assert len(trained) == 2 and all(step["train/mismatch_max"] < 1e-3 for step in trained)
    for step in trained:  # a group whose episodes all earned the same is sampled, and not trained on
        saved = RunFolder.open(run).read_episodes(step["step"])
        assert step["train/trained_tokens"] == sum(one.episode.num_trained_tokens for one in saved if one.trained) > 0
    return trained


def _agentgym(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("agentgym")), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
