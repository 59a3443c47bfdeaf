"""What each start of a run, the first and those after a resume, trained with: its settings and its machine.

    RUN/starts.jsonl    one line a start

A step can be trained again only with the settings of its own start: `config.yaml` has those of the last one. What was
changed while a run went on is in changes.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentgym.runs.changes import read_changes, with_values
from agentgym.runs.files import append_line, dump_line, read_json_lines
from agentgym.runs.folder import RunFolder
from agentgym.types import Json

STARTS = "starts.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """step: done before it. machine: of the trainer; empty for a run of an older version, which recorded none."""

    step: int
    config: Mapping[str, object]
    machine: Mapping[str, str]


def record_start(run: RunFolder, *, step: int, config: Mapping[str, Json], machine: Mapping[str, str]) -> None:
    """step: finished when this process took over; 0 for a new run."""
    row: dict[str, Json] = {"step": step, "time": time.time(), "process": os.getpid(), "machine": dict(machine)}
    row["config"] = dict(config)
    append_line(run.path / STARTS, dump_line(row))


def start_of(run: RunFolder, step: int) -> Start:
    """The start that trained a step: the newest one before it, since a resume undoes the steps after its checkpoint.

    Its config has the changes that were made between the two.
    """
    path = run.path / STARTS
    found = Start(step=0, config=run.load_config(), machine={})
    for row in read_json_lines(path) if path.is_file() else ():
        before, config, machine = row.get("step"), row.get("config"), row.get("machine")
        if isinstance(before, int) and before < step and isinstance(config, Mapping) and isinstance(machine, Mapping):
            found = Start(step=before, config=config, machine={key: str(value) for key, value in machine.items()})
    made = [one for one in read_changes(run.path) if found.step <= one.step < step]
    return replace(found, config=with_values(found.config, {one.setting: one.value for one in made}))
