"""Metric sinks write what a run logs, and say what to do when their package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry


def test_tensorboard_files_can_be_read_while_they_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    sink = PluginRegistry.discover().sink("tensorboard")()
    sink.open(str(tmp_path), {"env": {"name": "math"}})
    sink.log(0, {"train/loss": 1.5})
    assert read_scalars(tmp_path) == {"train/loss": [(0, 1.5)]}
    sink.close()


def test_tensorboard_shows_one_history_of_a_run_that_went_back_to_an_earlier_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for steps, value in ((range(1, 7), 1.0), (range(4, 6), 2.0)):
        sink = PluginRegistry.discover().sink("tensorboard")()
        sink.open(str(tmp_path), {})
        for step in steps:
            sink.log(step, {"train/loss": value, **({"eval/success": value} if step == 6 else {})})
        sink.close()
    assert read_scalars(tmp_path)["train/loss"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]
    assert read_scalars(tmp_path).get("eval/success", []) == []  # of a step that is not reached again yet


def read_scalars(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def run(code: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "WANDB_MODE": "offline", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment, cwd=folder, timeout=120
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


@pytest.mark.hostile
def test_wandb_offline_has_one_history_of_a_run_that_went_back_to_an_earlier_step(tmp_path: Path) -> None:
    """What the newest files hold is what `wandb sync` shows: files of the same id take the place of earlier ones."""
    pytest.importorskip("wandb")
    write = """
import json, sys
from agentgym.hooks import PluginRegistry
sink = PluginRegistry.discover().sink('wandb')()
sink.open('.', {})
with open('metrics.jsonl', 'a') as file:
    for step in range(int(sys.argv[1]), int(sys.argv[2])):
        row = {'train/loss': float(sys.argv[3]), 'train/kl': None}
        print(json.dumps({'step': step, 'time': 1.0, **row}), file=file, flush=True)
        sink.log(step, {'train/loss': row['train/loss']})
sink.close()
"""
    for words in (("1", "6", "1.5"), ("4", "7", "2.5")):
        done = run(write, tmp_path, *words)
        assert done.returncode == 0 and done.stdout == done.stderr == "", done.stderr
    first, second = sorted(tmp_path.glob("wandb/offline-run-*"), key=lambda path: path.stat().st_ctime_ns)
    assert first.name.rpartition("-")[2] == second.name.rpartition("-")[2]
    assert wandb_history(second) == [(1, 1.5), (2, 1.5), (3, 1.5), (4, 2.5), (5, 2.5), (6, 2.5)]


def wandb_history(folder: Path) -> list[tuple[int, float]]:
    """The file is a log as LevelDB's: a header of 7 bytes, then blocks of 32 KiB with pieces of records."""
    from wandb.proto import wandb_internal_pb2

    data, place, record, found = next(folder.glob("run-*.wandb")).read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        record += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last piece
            read = wandb_internal_pb2.Record()
            read.ParseFromString(record)
            row = {item.key or "/".join(item.nested_key): item.value_json for item in read.history.item}
            if "train/loss" in row:
                found.append((read.history.step.num, float(row["train/loss"])))
            record = b""
    return found


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio", "prometheus", "opentelemetry"])
def test_a_missing_package_is_a_user_error_with_the_way_to_get_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = PluginRegistry.discover().sink(name)()
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(UserError, match=r"pip install .*leave .* out of `logging\.sinks`"):
        sink.open(str(tmp_path), {})
    sink.close()
