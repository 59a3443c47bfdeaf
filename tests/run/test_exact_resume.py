"""A deterministic asynchronous run that is killed, stopped and resumed is the run that was not: bit for bit."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest
from same_run import differences

from agentgym.run.train import train
from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import Steering

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(900)]  # four starts of a run, on a machine that may be busy
CODE = (
    "import asyncio, sys\nfrom agentgym.runs.folder import RunFolder\n"
    "from agentgym.recipe import build_recipe\nfrom agentgym.run.train import train\n"
    "from agentgym.runs.report import PlainReporter\n"
    "with RunFolder.open(sys.argv[1], for_writing=True) as folder:\n"
    "    asyncio.run(train(build_recipe(folder.load_config()), folder, PlainReporter(sys.stderr)))\n"
)


def test_a_deterministic_run_that_is_killed_and_stopped_is_the_run_that_was_not(lab) -> None:
    recipe = lab.recipe(
        "launcher.name=local",
        "generator.replicas=2",
        "loop.steps=5",
        "loop.deterministic=true",
        "loop.max_staleness=2",
        "loop.checkpoint_every=2",
        "eval.at_end=false",
        "optimizer.lr=1e-3",
    )
    whole = lab.new_run(recipe, "whole")
    with whole:
        asyncio.run(train(recipe, whole, lab.reporter()))
    folder = lab.new_run(recipe, "again")
    folder.close()
    with subprocess.Popen([sys.executable, "-c", CODE, str(folder.path)], stderr=subprocess.DEVNULL) as run:
        metrics = folder.path / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):  # a step after a checkpoint
            assert run.poll() is None
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
    stops = lab.reporter(on_step=lambda step: step == 4 and Steering(folder.path).ask("stop"))
    for reporter in (stops, lab.reporter()):
        with RunFolder.open(folder.path, for_writing=True) as again:
            asyncio.run(train(recipe, again, reporter, resume=True))
            ended_at = [row.step for row in again.read_metrics()][-1]
        assert ended_at == (4 if reporter is stops else 5)
    with RunFolder.open(whole.path) as whole, RunFolder.open(folder.path) as again:
        assert differences(whole, again) == []
        assert max(row.metrics["loop/staleness_max"] for row in whole.read_metrics()) == 1, "it was asynchronous"
