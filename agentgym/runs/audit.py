"""Reads a run's folder as a stranger would and lists what is wrong with it: nothing twice, nothing lost, nothing half.

It shares no code with what writes the folder, and believes no index or summary where the thing itself can be counted.
A run that is not done is judged up to its newest whole checkpoint, since a resume undoes the steps after that.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.runs.files import read_json
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.leftovers import left_outside

PARTS = ("*.part", "*.part.*", "*.partial", ".*.tmp")  # names of what was being written


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """kind: twice, lost, torn, stale, metrics, checkpoint, evaluation, state or left behind. where: in the folder."""

    kind: str
    where: str
    text: str


@dataclass(slots=True, kw_only=True)
class Audit:
    """status: of the run. steps: how many were judged. trained, skipped: episodes. faults: in the order found.

    notes: what is no fault, and what could not be judged.
    """

    status: str
    steps: int = 0
    trained: int = 0
    skipped: int = 0
    checkpoints: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fault(self, kind: str, where: str, text: str) -> None:
        self.faults.append(Fault(kind=kind, where=where, text=text))


def audit(path: str | Path) -> Audit:
    """Raises UserError for a folder that holds no run. One that is still written is judged as an unfinished one."""
    folder = RunFolder.open(path)
    status = folder.status().status
    found = Audit(status=status.value)
    settings = _Settings.of(folder)
    rows = _metrics(folder.path, found)
    whole = _checkpoints(folder.path, found, done=status is RunStatus.DONE, running=status is RunStatus.RUNNING)
    last = max((step for step, _ in rows), default=0)
    found.steps = last if status is RunStatus.DONE else max(whole, default=0)
    _continuous(rows, found)
    if settings.saves_episodes:
        _episodes(folder.path, dict(rows), settings, whole, found)
    else:
        found.notes.append("logging.save_episodes is false: what was trained can't be counted")
    _evaluations(folder.path, found)
    if status is RunStatus.DONE:
        _ended(folder.path, settings, whole, last, found)
    if status is not RunStatus.RUNNING:
        for where, text in left_outside(folder.path):
            found.fault("left behind", where, text)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """Of the recipe, as far as they bound what may be found. max_staleness: the loop's bound; None where unknown."""

    saves_episodes: bool
    measures_end: bool
    group_size: int | None
    max_staleness: int | None

    @classmethod
    def of(cls, folder: RunFolder) -> _Settings:
        try:
            config = folder.load_config()
        except (OSError, UserError):
            config = {}

        def value(section: str, key: str) -> Any:
            part = config.get(section)
            return part.get(key) if isinstance(part, Mapping) else None

        return cls(
            saves_episodes=value("logging", "save_episodes") is not False,
            measures_end=value("eval", "at_end") is True,
            group_size=value("loop", "group_size"),
            max_staleness=value("loop", "max_staleness"),
        )


def _metrics(path: Path, found: Audit) -> list[tuple[int, Mapping[str, Any]]]:
    """The rows as they lie in the file, by step."""
    rows: list[tuple[int, Mapping[str, Any]]] = []
    file = path / "metrics.jsonl"
    for number, line in enumerate(file.read_bytes().splitlines() if file.is_file() else (), start=1):
        try:
            row = json.loads(line)
            rows.append((int(row["step"]), row))
        except (ValueError, KeyError, TypeError):
            found.notes.append(f"metrics.jsonl: line {number} is torn")
    return rows


def _continuous(rows: list[tuple[int, Mapping[str, Any]]], found: Audit) -> None:
    times = Counter(step for step, _ in rows)
    for step in range(1, found.steps + 1):
        if times[step] != 1:
            text = f"step {step} has {times[step]} rows" if times[step] else f"step {step} has no row"
            found.fault("metrics", "metrics.jsonl", text)
    judged = [step for step, _ in rows if step <= found.steps]
    if judged != sorted(judged):
        found.fault("metrics", "metrics.jsonl", "its rows are not in the order of the steps")


def _episodes(
    path: Path, rows: Mapping[int, Mapping[str, Any]], settings: _Settings, whole: Mapping[int, int], found: Audit
) -> None:
    """Every group is in one step, whole; together they are all groups up to the last one taken."""
    step_of: dict[int, int] = {}
    seen: dict[str, int] = {}
    files = {int(file.name[5:].partition(".")[0]): file for file in (path / "episodes").glob("step-*.jsonl*")}
    extra = sorted(step for step in files if step > found.steps)
    if extra and found.status == RunStatus.DONE:
        found.fault("twice", f"episodes/{files[extra[0]].name}", f"the run ended at step {found.steps}")
    for step in range(1, found.steps + 1):
        if step not in files:
            found.fault("lost", "episodes", f"step {step} has no episodes")
            continue
        where, groups, trained = f"episodes/{files[step].name}", defaultdict[int, list[int]](list), set[int]()
        for record in _records(files[step], where, found):
            name, group = str(record["episode"]["episode_id"]), int(record["group_id"])
            if name in seen:
                found.fault("twice", where, f"episode {name} is in step {seen[name]} and in step {step}")
            if step_of.setdefault(group, step) != step and group not in groups:
                found.fault("twice", where, f"group {group} is in step {step_of[group]} and in step {step}")
            seen[name] = step
            groups[group].append(int(record["index"]))
            if record["trained"]:
                trained.add(group)
                found.trained += 1
                _fresh(record, step, settings.max_staleness, where, found)
            else:
                found.skipped += 1
        for group, indices in groups.items():
            size = settings.group_size or len(indices)
            if missing := sorted(set(range(size)) - set(indices)):
                found.fault("lost", where, f"group {group} lacks its episodes {', '.join(map(str, missing))}")
        _as_counted(rows.get(step, {}), sum(map(len, groups.values())), len(trained), where, found)
    _no_gap(step_of, whole, found)


def _no_gap(step_of: Mapping[int, int], whole: Mapping[int, int], found: Audit) -> None:
    """whole: the next group of each checkpoint, which says how far the run had got."""
    taken = max(max(step_of, default=-1) + 1, max((n for s, n in whole.items() if s <= found.steps), default=0))
    if lost := sorted(set(range(taken)) - set(step_of)):
        shown = ", ".join(map(str, lost[:10])) + (" and more" if len(lost) > 10 else "")
        found.fault("lost", "episodes", f"{len(lost)} of {taken} groups are in no step: {shown}")


def _fresh(record: Mapping[str, Any], step: int, bound: int | None, where: str, found: Audit) -> None:
    versions = [int(span[0]) for turn in record["episode"]["turns"] for span in turn["versions"]]
    name = record["episode"]["episode_id"]
    if versions and max(versions) >= step:
        found.fault(
            "stale", where, f"episode {name} was sampled by version {max(versions)}, but trained by step {step}"
        )
    elif versions and bound is not None and step - 1 - min(versions) > bound:
        found.fault("stale", where, f"episode {name} is {step - 1 - min(versions)} versions old; allowed are {bound}")


def _as_counted(row: Mapping[str, Any], episodes: int, groups: int, where: str, found: Audit) -> None:
    for key, number in (("rollout/episodes", episodes), ("loop/groups", groups)):
        if row.get(key, number) != number:
            found.fault("lost", where, f"it holds {number} {key.partition('/')[2]}, its metrics count {row[key]:.0f}")


def _records(file: Path, where: str, found: Audit) -> Iterator[Mapping[str, Any]]:
    """The lines of an episode file; one that can't be read to its end is a fault."""
    try:
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for line in text.splitlines():
            record = json.loads(line)
            record["episode"]["episode_id"], record["group_id"], record["index"], record["trained"]
            yield record
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        found.fault("torn", where, f"it can't be read to its end ({type(error).__name__}: {error})")


def _checkpoints(path: Path, found: Audit, *, done: bool, running: bool) -> dict[int, int]:
    """Of each whole checkpoint, the next group of its position. The newest of a run that is not done may be half."""
    whole: dict[int, int] = {}
    half: list[tuple[int, str]] = []
    for folder in sorted((path / "checkpoints").glob("step-*")):
        step = int(folder.name.removeprefix("step-"))
        if problem := _half(folder, step):
            half.append((step, problem))
            continue
        whole[step] = int(json.loads((folder / "position.json").read_bytes())["next_group"])
    found.checkpoints = [*whole]
    for step, problem in half:
        if done or (step < max(whole, default=0) and not running):
            found.fault("checkpoint", f"checkpoints/step-{step:06d}", f"it is half: {problem}")
        else:
            found.notes.append(f"the checkpoint of step {step} is half, as its save was interrupted: {problem}")
    return whole


def _half(folder: Path, step: int) -> str:
    """What is missing of a checkpoint; empty for a whole one."""
    try:
        position = json.loads((folder / "position.json").read_bytes())
        if position["step"] != step:
            return f"its position is of step {position['step']}"
        manifest = json.loads((folder / "trainer" / "manifest.json").read_bytes())
        if manifest["step"] != step:
            return f"the trainer's state is of step {manifest['step']}"
        for name, (size, _) in manifest["files"].items():
            if (there := (folder / "trainer" / name).stat().st_size) != size:
                return f"trainer/{name} has {there} of {size} bytes"
        weights = sorted((folder / "hf").glob("*.safetensors"))
        if not weights:
            return "hf has no weights"
        return next(filter(None, map(_short, weights)), "")
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(folder)} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def _short(file: Path) -> str:
    """How a safetensors file is shorter than its header says."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    end = max((one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"), default=0)
    there = file.stat().st_size
    return f"hf/{file.name} has {there} of {8 + length + end} bytes" if there != 8 + length + end else ""


def _evaluations(path: Path, found: Audit) -> None:
    for record_file in sorted((path / "evals").glob("step-*.json")):
        if record_file.name.endswith(".index.json"):
            continue
        where, step = f"evals/{record_file.name}", int(record_file.stem.removeprefix("step-"))
        if found.status != RunStatus.DONE and step >= found.steps:
            continue  # a resume plays the rest of it, or all of it again
        record = read_json(record_file)
        setup: Any = record.get("setup") or {}
        if record.get("result") is None:
            found.fault("evaluation", where, "it has no result")
            continue
        file = record_file.with_suffix(".jsonl.gz")
        records = _records(file, f"evals/{file.name}", found)
        played = Counter((int(one["group_id"]), int(one["index"])) for one in records)
        wanted = int(setup.get("num_tasks") or 0) * int(setup.get("samples_per_task") or 0)
        if twice := [key for key, times in played.items() if times > 1]:
            found.fault("twice", f"evals/{file.name}", f"{len(twice)} episodes are there twice, first {twice[0]}")
        if wanted and len(played) != wanted:
            found.fault("lost", f"evals/{file.name}", f"{len(played)} of {wanted} episodes are there")


def _ended(path: Path, settings: _Settings, whole: Mapping[int, int], last: int, found: Audit) -> None:
    """What a run that says that it is done must have, and must not have."""
    state = read_json(path / "state.json") if (path / "state.json").is_file() else {}
    position: Any = state.get("position") or {}
    if last not in whole:
        found.fault("checkpoint", "checkpoints", f"the run ended at step {last}, which has no whole checkpoint")
    if position.get("step") != last:
        found.fault("state", "state.json", f"it is of step {position.get('step')}, the run ended at step {last}")
    if settings.measures_end:
        compared = read_json(path / "comparison.json") if (path / "comparison.json").is_file() else {}
        if compared.get("steps") != last:
            found.fault("evaluation", "comparison.json", f"the checkpoint of step {last} was not compared")
    for part in sorted({part for pattern in PARTS for part in path.rglob(pattern)}):
        found.fault("left behind", str(part.relative_to(path)), "it was being written when something ended")
