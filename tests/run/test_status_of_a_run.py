"""`agentgym status` of a run that goes on, with the sinks that are chosen by default."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym.runs.folder import RunFolder
from agentgym.runs.heartbeat import BEAT_BYTES
from agentgym.runs.liveness import CONTROLLER, STUCK_S, read_pulses

pytestmark = pytest.mark.hostile
AGENTGYM = (sys.executable, "-m", "agentgym.cli.main")
LONGER_S = 15.0  # than STUCK_S, after which a thread that is in one place is worth a word


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    options = ("--env", "math", "--name", "one", "--loop.steps", "1000", "--set", "eval.at_end=false", "--plain")
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [*AGENTGYM, "train", *options, "--generator.replicas", "1"], cwd=tmp_path, stdout=log, stderr=log
        ) as process,
    ):
        try:
            yield tmp_path / "runs" / "one"
        finally:
            process.send_signal(signal.SIGTERM)


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def asked(run: Path) -> dict[str, Any]:
    said = subprocess.run([*AGENTGYM, "status", run, "--json"], capture_output=True, check=True, text=True).stdout
    return json.loads(said)["processes"]


def steps(run: Path) -> int:
    return len(RunFolder.open(run).read_metrics()) if (run / "metrics.jsonl").is_file() else 0


def test_a_healthy_run_is_not_called_stuck_and_one_whose_trainer_is_stopped_names_the_trainer(run: Path) -> None:
    assert LONGER_S > STUCK_S
    wait_for(lambda: steps(run) >= 1)
    began, before = time.monotonic(), steps(run)
    wait_for(lambda: time.monotonic() - began > LONGER_S and steps(run) > before)
    assert list(run.glob("tensorboard/*")), "the default sink writes, in a thread of its own"
    found = asked(run)
    assert not found["is_stuck"] and "processes answer" in found["text"], found
    [trainer] = [one for one in read_pulses(run / "logs") if one.name == "trainer"]
    os.kill(trainer.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: asked(run)["is_stuck"])
        assert f"trainer, process {trainer.pid}, is stopped by a signal" in (text := asked(run)["text"]), text
        assert "event_file_writer" not in text and CONTROLLER not in text
    finally:
        os.kill(trainer.pid, signal.SIGCONT)
    beat = (run / "logs" / f"{CONTROLLER}.beat").read_bytes()
    assert len(beat) == BEAT_BYTES and json.loads(beat)["loop"] == "MainThread"
