"""Judges the evaluations of a folder: every task and sample is there once, and the result is that of the episodes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.runs.audit_files import Audit, Played, by_step, gaps, ranges, read_episodes, read_record
from agentgym.runs.folder import RunStatus
from agentgym.runs.untrusted import Damaged, damage, number, read_text
from agentgym.yaml import parse_yaml

MAX_NAMED = 5  # faults of one kind
ROUNDING = 1e-9


def judge_evaluations(path: Path, found: Audit, *, alone: bool = False) -> None:
    """alone: the folder holds nothing else, and no resume undoes them."""
    try:
        parse_yaml(read_text(path / "config.yaml"), where="config.yaml")
    except FileNotFoundError:
        pass
    except (UserError, Damaged) as error:
        found.fault("evaluation" if alone else "state", "config.yaml", str(error))
    for step, file in by_step(path / "evals", r"step-(\d{1,9})\.json", found).items():
        if found.status != RunStatus.DONE and step >= found.steps and not alone:
            continue  # a resume plays the rest of it, or all of it again
        record = read_record(file, "evaluation", found)
        if record is None:
            continue
        if record.get("result") is None:
            _unfinished(file, record, found, alone=alone)
            continue
        try:
            with damage():
                wanted = _wanted(record["setup"])
        except Damaged as error:
            found.fault("evaluation", f"evals/{file.name}", f"its setup is damaged: {error}")
            continue
        where = f"evals/{file.stem}.jsonl.gz"
        played = [*read_episodes(file.with_suffix(".jsonl.gz"), where, found)]
        found.evaluations.append(step)
        found.played += len(played)
        _once(played, wanted, where, found)
        _as_summed_up(record["result"], played, f"evals/{file.name}", found)


def _wanted(setup: Mapping[str, Any]) -> tuple[range, int]:
    """The numbers of the tasks, and of the samples of each. A shard plays every total-th task."""
    first, total = 1, 1
    if shard := setup.get("shard"):
        first, total = map(int, re.findall(r"\d{1,6}", shard))
    return range(first - 1, number(setup.get("num_tasks", 0)), total), number(setup.get("samples_per_task", 0))


def _unfinished(file: Path, record: Mapping[str, Any], found: Audit, *, alone: bool) -> None:
    part = file.with_suffix(".part.jsonl")
    if found.status == RunStatus.DONE and (alone or not record.get("weights")):
        found.fault("evaluation", f"evals/{file.name}", "it has no result")
        return
    found.interrupted.add(f"evals/{part.name}")
    ended: dict[tuple[int, int], bool] = {}
    for one in read_episodes(part, f"evals/{part.name}", found):
        key = (one.group, one.index)
        if ended.get(key):  # one that broke is played again
            found.fault("twice", f"evals/{part.name}", f"sample {one.index} of task {one.group} was played twice")
        ended[key] = not one.broken
    found.played += len(ended)
    how = f"agentgym eval --resume {file.parent.parent}" if alone else "agentgym eval RUN --every-checkpoint"
    state = "goes on" if found.status == RunStatus.RUNNING else f"was interrupted: `{how}` goes on with it"
    found.note(f"evals/{file.name}, of which {len(ended)} episodes have ended, {state}")


def _once(played: Iterable[Played], wanted: tuple[range, int], where: str, found: Audit) -> None:
    """Every sample of every task is there, under one name, and nothing else."""
    tasks, samples = wanted
    seen: dict[int, set[int]] = defaultdict(set)
    names: dict[str, tuple[int, int]] = {}
    ids: dict[int, str] = {}
    faults: list[tuple[str, str]] = []
    for one in played:
        at = f"sample {one.index} of task {one.group}"
        if one.index in seen[one.group]:
            faults.append(("twice", f"{at} is there twice"))
        elif names.setdefault(one.name, (one.group, one.index)) != (one.group, one.index):
            faults.append(("twice", f"episode {one.name} is there as {at} and as another"))
        if tasks and (one.group not in tasks or not one.index < samples):
            faults.append(("twice", f"{at} is more than the evaluation plays"))
        if ids.setdefault(one.group, one.task) != one.task:
            faults.append(("lost", f"task {one.group} is {ids[one.group]!r}, and {one.task!r} in sample {one.index}"))
        seen[one.group].add(one.index)
    for group in tasks:
        if missing := [*gaps(seen[group], 0, samples - 1)]:
            faults.append(("lost", f"task {group} lacks its samples {ranges(missing)}"))
    for kind, text in faults[:MAX_NAMED]:
        found.fault(kind, where, text)
    if len(faults) > MAX_NAMED:
        found.fault(faults[MAX_NAMED][0], where, f"{len(faults) - MAX_NAMED} more samples are lost or twice")
    if len({*ids.values()}) < len(ids):
        found.note(f"{where}: {len(ids)} tasks have {len({*ids.values()})} ids")


def _as_summed_up(result: Any, played: Iterable[Played], where: str, found: Audit) -> None:
    """The result counts the episodes that are there."""
    if not isinstance(result, Mapping):
        found.fault("evaluation", where, "its result is damaged")
        return
    counted = [one for one in played if not one.broken]
    if result.get("num_episodes", len(counted)) != len(counted):
        text = f"its result counts {str(result['num_episodes'])[:20]} episodes, of which {len(counted)} are there"
        found.fault("evaluation", where, text)
    rows: dict[int, list[bool]] = defaultdict(list)
    for one in counted:
        rows[one.group].append(one.success is True)
    said = result.get("success")
    if not rows or said is None:
        return
    success = math.fsum(sum(row) / len(row) for row in rows.values()) / len(rows)
    if not isinstance(said, (int, float)) or abs(success - said) > ROUNDING:
        found.fault("evaluation", where, f"its result says {str(said)[:20]} success, its episodes {success:.6g}")
