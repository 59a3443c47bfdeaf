"""kill -9 while a checkpoint is being saved."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentgym.run.train import train
from agentgym.runs.folder import RunFolder
from agentgym.trainer.journal import Journal

pytestmark = pytest.mark.hostile


def test_a_run_that_was_killed_in_a_save_goes_on_and_trains_nothing_twice(lab) -> None:
    recipe = lab.recipe("launcher.name=local", "loop.steps=4", "eval.at_end=false", "loop.checkpoint_every=1")
    folder = lab.new_run(recipe)
    folder.close()
    code = (
        "import asyncio, sys\nfrom agentgym.runs.folder import RunFolder\n"
        "from agentgym.recipe import build_recipe\nfrom agentgym.run.train import train\n"
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
        "launcher.name=local",
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


LOSS = """
import time
from dataclasses import dataclass
from pathlib import Path
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer import saving

class Writer(FileSystemWriter):
    def write_data(self, *args):
        while "HELD" in str(self.path) and not Path("written").exists():
            time.sleep(0.01)
        return super().write_data(*args)

saving.FileSystemWriter = Writer  # in each process that has the loss

@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(Grpo):
    pass
"""


COMMAND = [sys.executable, "-m", "agentgym.cli.main", "train", "--plain"]


def in_background(small: Sequence[str], every: int = 2) -> list[str]:
    """The fields of a run that saves beside its steps, and whose next bits depend on nothing but the ones before."""
    more = ("loop.steps=5", f"loop.checkpoint_every={every}", "eval.at_end=false", "loop.deterministic=true")
    return [f"--{one}" for one in (*small, *more, "generator.engine.name=native", "loss.name=slow_loss:Slow")]


@pytest.fixture(scope="module")
def unhurt(make_lab, tmp_path_factory) -> Path:
    """The last checkpoint of a run that nothing kills and that waits for its checkpoints."""
    place = tmp_path_factory.mktemp("unhurt")
    (place / "slow_loss.py").write_text(LOSS)
    (place / "written").touch()
    words = [*COMMAND, "--name", "quiet", *in_background(make_lab.small), "--loop.checkpoint_in_background", "false"]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place / "runs" / "quiet" / "checkpoints" / "step-000005"


@pytest.mark.parametrize(("killed", "held"), [("trainer", 0), ("trainer", 2), ("run", 2)])
def test_a_kill_while_a_checkpoint_is_written_in_the_background_changes_no_bit(
    lab, unhurt: Path, tmp_path, killed, held
) -> None:
    (tmp_path / "slow_loss.py").write_text(LOSS.replace("HELD", f"step-{held:06}"))
    (tmp_path / "runs").mkdir()
    with ExitStack() as stack:
        named = [*COMMAND, "--name", "hurt", *in_background(lab.small, every=2 if held else 100)]
        popen = subprocess.Popen(named, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        run = stack.enter_context(popen)
        stack.callback(run.kill)
        path = tmp_path / "runs" / "hurt"
        while not (path / "metrics.jsonl").exists() or len((path / "metrics.jsonl").read_text().splitlines()) < 3:
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.01)
        folder = RunFolder.open(path)
        assert (path / "checkpoints" / f"step-{held:06}" / "trainer.partial").is_dir()
        assert folder.checkpoint_steps() == [0][:held] and Journal(path / "journal").steps()[:3] == [1, 2, 3]
        (lab.processes(Path("runs/hurt"), "trainer")[0] if killed == "trainer" else run).kill()
        if killed == "run":
            run.wait()
        (tmp_path / "written").touch()
        if killed == "run":
            again = subprocess.run([*COMMAND, "--resume", str(path)], cwd=tmp_path, capture_output=True, text=True)
            assert again.returncode == 0, again.stderr
        else:
            errors = run.communicate(timeout=200)[1]
            assert run.returncode == 0, errors
            assert f"the checkpoint of step {held} was lost with the trainer" in (path / "events.log").read_text()
    assert folder.checkpoint_steps() == sorted({0, held, 4, 5} - ({held} if killed == "trainer" else set()))
    assert [row.step for row in folder.read_metrics()] == [1, 2, 3, 4, 5]
    hurt = path / "checkpoints" / "step-000005"
    for part in ("trainer/__0_0.distcp", "hf/model.safetensors"):
        assert (hurt / part).read_bytes() == (unhurt / part).read_bytes()
