"""What is kept of a run's past: its checkpoints with their positions, and nothing of steps that were undone."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from agentgym.runs.curve import HELD_OUT, HELD_OUT_REWARD
from agentgym.runs.files import read_json, read_json_lines, sync, write_whole, writing
from agentgym.runs.folder import RunFolder
from agentgym.runs.untrusted import Damaged, read_objects
from agentgym.types import Json

POSITION = "position.json"  # written last: a checkpoint without it is an unfinished save


def save_position(run: RunFolder, step: int, position: Mapping[str, Json]) -> None:
    """Finish the checkpoint of a step: all else of it must be on the disk."""
    write_whole(run.checkpoint_dir(step) / POSITION, json.dumps(position).encode())


def load_position(run: RunFolder, step: int) -> dict[str, Json]:
    """What `save_position` was given; empty for an unfinished save. Raises UserError when it is damaged."""
    path = run.checkpoint_dir(step) / POSITION
    return read_json(path) if path.is_file() else {}


def discard(run: RunFolder, step: int) -> None:
    """Remove what an unfinished save left. Raises InfraError, which names the path, when it can't be removed."""
    if (path := run.checkpoint_dir(step)).exists():
        _remove(path)


def drop_unfinished(run: RunFolder) -> None:
    """Remove what saves left that a death cut off. Raises InfraError, which names the path, where it can't."""
    for step in run.checkpoint_steps(unfinished=True):
        if any(run.checkpoint_dir(step).glob("*.partial")) and not load_position(run, step):
            discard(run, step)


def drop_undone(run: RunFolder, step: int) -> None:
    """Remove what the steps after `step` left: episodes, evaluations, metrics, checkpoints, the final comparison.

    Raises InfraError, which names the path, when it can't be changed.
    """
    for name in ("checkpoints", "episodes", "evals"):
        for path in (run.path / name).glob("step-*"):
            number = re.match(r"step-(\d+)", path.name)
            if number and int(number[1]) > step:
                _remove(path)
    metrics = run.path / "metrics.jsonl"
    rows = [*read_objects(metrics)] if metrics.is_file() else []
    kept = [row for _, row in rows if row is not None and isinstance(row.get("step"), int) and row["step"] <= step]
    if len(kept) < len(rows):  # a torn row is dropped too: its step is done again, or was reported
        write_whole(metrics, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in kept).encode())
    ended_at = run.load_comparison().get("steps")
    if isinstance(ended_at, int) and ended_at > step:
        _remove(run.path / "comparison.json")


def torn_step(run: RunFolder, after: int, last: int, *, episodes: bool) -> str:
    """What is missing or torn of the first such step behind `after`, up to `last`; empty where all is whole.

    episodes: whether the run saves them.
    """
    rows = _steps_with_rows(run)
    for step in range(after + 1, last + 1):
        if step not in rows:
            return f"metrics.jsonl has no whole row of step {step}"
        if episodes and (problem := _torn_episodes(run, step)):
            return f"the episodes of step {step} {problem}"
    return ""


def lost_rows(run: RunFolder, last: int) -> list[int]:
    """The steps up to `last` without a whole row, of a run that has any."""
    rows = _steps_with_rows(run)
    return [step for step in range(1, last + 1) if step not in rows] if rows else []


def _steps_with_rows(run: RunFolder) -> set[object]:
    try:
        return {row.get("step") for _, row in read_objects(run.path / "metrics.jsonl") if row is not None}
    except (FileNotFoundError, Damaged):
        return set()


def _torn_episodes(run: RunFolder, step: int) -> str:
    path = run.episode_file(step)
    try:
        return "are torn" if any(record is None for _, record in read_objects(path)) else ""
    except FileNotFoundError:
        return "are missing"
    except Damaged as error:
        return f"can't be read: {error}"


def prune(run: RunFolder, keep: int) -> None:
    """Remove old checkpoints: all but the newest `keep`, and the best by held-out success; 0 keeps all.

    Where success is unknown, the best is by held-out reward.
    """
    steps = run.checkpoint_steps()
    if not keep or len(steps) <= keep:
        return
    measured = {}
    for row in read_json_lines(run.path / "metrics.jsonl"):  # one at a time: all of a long run's are megabytes
        if isinstance(value := row.get(HELD_OUT, row.get(HELD_OUT_REWARD)), float):
            measured[row["step"]] = value
    best = max((step for step in steps if step in measured), key=lambda step: (measured[step], step), default=None)
    for step in steps[:-keep]:
        if step != best:
            _remove(run.checkpoint_dir(step))


def _remove(path: Path) -> None:
    with writing(path):
        if path.is_dir():
            (path / POSITION).unlink(missing_ok=True)  # first: what is left of it must not look whole
            sync(path)
            shutil.rmtree(path)
        else:
            path.unlink()
