"""Metric sinks write what a run logs, and say what to do when their package is missing."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry


def test_tensorboard_files_hold_every_value(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    sink = PluginRegistry.discover().sink("tensorboard")()
    sink.open(str(tmp_path), {"env": {"name": "math"}})
    sink.log(0, {"train/loss": 1.5, "rollout/reward": 0.25})
    sink.log(1, {"train/loss": math.nan})
    sink.log(2, {"train/loss": 0.5})
    assert read_scalars(tmp_path)["train/loss"][0] == (0, 1.5)  # readable while it is being written
    sink.close()
    sink.close()
    read = read_scalars(tmp_path)
    assert [(step, value) for step, value in read["train/loss"] if value == value] == [(0, 1.5), (2, 0.5)]
    assert read["rollout/reward"] == [(0, 0.25)]


def read_scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "WANDB_MODE": "offline", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=folder, timeout=120
    )


def test_writing_tensorboard_files_imports_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    done = run(
        "import sys\nfrom agentgym.hooks import PluginRegistry\n"
        "sink = PluginRegistry.discover().sink('tensorboard')()\n"
        "sink.open('.', {}); sink.log(0, {'a': 1.0}); sink.close()\n"
        "assert 'torch' not in sys.modules and 'tensorflow' not in sys.modules",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_wandb_offline_writes_into_the_run_and_keeps_the_terminal_clean(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    done = run(
        "from agentgym.hooks import PluginRegistry\n"
        "sink = PluginRegistry.discover().sink('wandb')()\n"
        "sink.open('.', {'env': {'name': 'math'}})\n"
        "for step in range(3): sink.log(step, {'train/loss': 1.0 / (step + 1)})\n"
        "sink.close(); sink.close()",
        tmp_path,
    )
    assert done.returncode == 0 and done.stdout == done.stderr == ""
    (saved,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train/loss" in saved.read_bytes()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_package_is_a_user_error_with_the_way_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PluginRegistry.discover().sink(name)()
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(UserError, match=r"pip install .*leave .* out of `logging\.sinks`"):
        sink.open(str(tmp_path), {})
    sink.close()
