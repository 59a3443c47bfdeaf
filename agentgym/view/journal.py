"""What happened in a run, and what its processes wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentgym.tables.problems import Problem
from agentgym.tables.roots import inside
from agentgym.tables.run import Run
from agentgym.view.live import event_of

MAX_BYTES = 2**20
MAX_LINE = 2000


def events_json(run: Run, tail: int) -> dict[str, Any]:
    """`/api/runs/{run}/events`: the last of its events, and the names of its logs."""
    lines, left_out = _last_lines(run.path / "events.log", tail)
    return {"events": [event_of(line) for line in lines if line], "left_out": left_out, "logs": _logs(run)}


def log_json(run: Run, name: str, tail: int) -> dict[str, Any]:
    """`/api/runs/{run}/logs/{name}`. Raises Problem."""
    known = _logs(run)
    if name not in known:
        raise Problem.unknown("log", name, known)
    lines, left_out = _last_lines(run.path / "logs" / name, tail)
    return {"name": name, "lines": lines, "left_out": left_out}


def _logs(run: Run) -> list[str]:
    folder = inside(run.path, "logs")
    try:
        names = sorted(path.name for path in folder.iterdir()) if folder is not None else []
    except OSError:
        return []
    return [name for name in names if folder and (path := inside(folder, name)) is not None and path.is_file()]


def _last_lines(path: Path, tail: int) -> tuple[list[str], int]:
    """The last lines of at most MAX_BYTES, and how many bytes before them were left out."""
    if inside(path.parent, path.name) is None:
        return [], 0
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - MAX_BYTES)
            file.seek(start)
            data = file.read(MAX_BYTES)
    except OSError:
        return [], 0
    lines = data.split(b"\n")
    lines = lines[1:] if start else lines
    kept = [line for line in lines if line][-tail:]
    left_out = size - sum(len(line) + 1 for line in kept)
    return [line.decode("utf-8", "replace")[:MAX_LINE] for line in kept], max(0, left_out)
