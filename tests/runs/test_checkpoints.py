"""What is kept of a run's past."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.runs.checkpoints import drop_undone, load_position, prune, save_position
from agentgym.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder.create(tmp_path, "one") as made:
        yield made


def checkpoint(folder: RunFolder, step: int) -> None:
    (folder.checkpoint_dir(step) / "hf").mkdir(parents=True)
    save_position(folder, step, {"step": step})


def test_what_undone_steps_left_is_dropped_and_the_rest_stays_as_it_was(folder: RunFolder) -> None:
    for step in range(1, 7):
        folder.append_metrics(step, {"reward": step / 7, "loss": math.nan})
        folder.save_groups(step, [])
    for step in (0, 2, 4, 6):
        checkpoint(folder, step)
    evals = [folder.evaluation_file(step, suffix) for step in (0, 4, 6) for suffix in (".jsonl.gz", ".json")]
    for path in evals:
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    folder.save_comparison({"steps": 6})
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    drop_undone(folder, 4)
    assert (folder.path / "metrics.jsonl").read_text().splitlines() == lines[:4]
    assert folder.episode_steps() == [1, 2, 3, 4]
    assert [path.is_file() for path in evals] == [True, True, True, True, False, False]
    assert folder.checkpoint_steps(unfinished=True) == [0, 2, 4]
    assert folder.load_comparison() == {}
    before = (folder.path / "metrics.jsonl").stat()
    drop_undone(folder, 4)  # again: nothing is written
    assert (folder.path / "metrics.jsonl").stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    ("held_out", "keep", "kept"),
    [
        ({}, 0, [0, 1, 2, 3, 4]),
        ({}, 2, [3, 4]),
        ({}, 9, [0, 1, 2, 3, 4]),
        ({1: 0.5, 2: 0.9, 3: 0.2}, 2, [2, 3, 4]),
        ({1: 0.9, 2: 0.9}, 1, [2, 4]),  # the later of two equals
        ({4: 0.9, 2: 0.1}, 1, [4]),
        ({1: 5.5, 2: 9.0}, 1, [2, 4]),  # rewards, where success is unknown
    ],
)
def test_pruning_keeps_the_newest_and_the_best(
    folder: RunFolder, held_out: dict[int, float], keep: int, kept: list[int]
) -> None:
    key = "eval/reward" if max(held_out.values(), default=0) > 1 else "eval/success"
    for step in range(5):
        checkpoint(folder, step)
        folder.append_metrics(step, {key: held_out[step]} if step in held_out else {})
    prune(folder, keep)
    assert folder.checkpoint_steps(unfinished=True) == kept


def test_a_damaged_position_is_named(folder: RunFolder) -> None:
    checkpoint(folder, 3)
    assert load_position(folder, 3) == {"step": 3} and load_position(folder, 4) == {}
    (folder.checkpoint_dir(3) / "position.json").write_text('{"step"')
    with pytest.raises(UserError, match=r"step-000003/position\.json"):
        load_position(folder, 3)
