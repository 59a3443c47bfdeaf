"""kill -9 while a checkpoint is being saved."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from agentgym.jobs.train import train
from agentgym.runs.folder import RunFolder
from agentgym.trainer.journal import Journal

pytestmark = pytest.mark.hostile


def test_a_run_that_was_killed_in_a_save_goes_on_and_trains_nothing_twice(lab) -> None:
    recipe = lab.recipe("loop.steps=4", "eval.at_end=false", "loop.checkpoint_every=1")
    folder = lab.new_run(recipe)
    folder.close()
    code = (
        "import asyncio, sys\nfrom agentgym.runs.folder import RunFolder\n"
        "from agentgym.recipe import build_recipe\nfrom agentgym.jobs.train import train\n"
        "from agentgym.runs.report import PlainReporter\n"
        "with RunFolder.open(sys.argv[1], for_writing=True) as folder:\n"
        "    asyncio.run(train(build_recipe(folder.load_config()), folder, PlainReporter(sys.stderr)))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stderr=subprocess.DEVNULL) as run:
        while not (folder.path / "checkpoints" / "step-000002").exists():  # the save of step 2 has begun
            assert run.poll() is None
            time.sleep(0.001)
        run.send_signal(signal.SIGKILL)
    reporter = lab.reporter()
    with RunFolder.open(folder.path, for_writing=True) as again:
        asyncio.run(train(recipe, again, reporter, resume=True))
        assert [row.step for row in again.read_metrics()] == [1, 2, 3, 4]
        assert len((again.path / "metrics.jsonl").read_text().splitlines()) == 4
        trained = [
            saved.episode.episode_id
            for step in again.episode_steps()
            for saved in again.read_episodes(step)
            if saved.trained
        ]
    assert len(trained) == len(set(trained)) > 0
    assert len(reporter.metrics) in (2, 3), "from step 2, or from step 1 where the save of 2 was not finished"


def test_a_run_whose_trainer_is_killed_goes_on_by_itself(lab) -> None:
    recipe = lab.recipe(
        "loop.steps=3",
        "loop.checkpoint_every=0",
        "eval.at_end=false",
        "loop.check_sync_every=1",
        "loop.max_staleness=0",
    )

    def kill(step: int) -> None:
        if step == 2:
            lab.processes(folder.path, "trainer")[0].kill()

    folder, reporter = lab.new_run(recipe), lab.reporter(on_step=kill)
    asyncio.run(train(recipe, folder, reporter))
    folder.close()
    assert [row.step for row in folder.read_metrics()] == [1, 2, 3]
    assert [metrics["trainer/restarts_total"] for metrics in reporter.metrics] == [0, 0, 1]
    # The generators sampled step 3 from what the lost process had published: the new one holds the same weights.
    assert max(metrics["train/mismatch_fresh_max"] for metrics in reporter.metrics) < 1e-4
    assert reporter.metrics[-1]["sync/mismatch_max"] < 1e-4
    journal = Journal(folder.path / "journal")
    assert journal.steps() == [], "the last checkpoint holds it all"
    assert lab.processes(folder.path) == []
