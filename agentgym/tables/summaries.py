"""The summaries of all evaluations in folders: found, read, and kept until one of their files changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from agentgym.errors import UserError
from agentgym.evals import summary
from agentgym.evals.summary import EvaluationSummary, evaluation_summary, files_of
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.tables.roots import DEFAULTS

Stamp: TypeAlias = "list[int] | None"
MAX_DEPTH = 5  # of folders that are searched for runs
SETTLED_NS = 1_000_000_000
"""A file that was changed less than this ago may change again within the clock's resolution, so it is not kept."""
_RECORD = re.compile(r"step-(\d{1,9})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """What folders hold. num_runs: runs and evaluations in them. unfinished, shards: folders of evaluations that are
    not finished, or are a shard of one. broken: a sentence for each file that can't be read."""

    summaries: tuple[EvaluationSummary, ...]
    num_runs: int
    unfinished: tuple[str, ...]
    shards: tuple[str, ...]
    broken: tuple[str, ...]


def find_runs(given: Iterable[str | Path]) -> list[Path]:
    """Runs, and those in folders, also of folders; without any, those of `runs` and `evals`. In the order of names.

    Raises UserError for what is not a folder, and where no run is.
    """
    folders = [Path(one) for one in given] or [Path(one) for one in DEFAULTS if Path(one).is_dir()]
    if not folders:
        raise UserError(
            "there is neither a folder 'runs' nor 'evals' here; give the folder of an evaluation or a run, or one "
            "that holds them"
        )
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"no folder {str(folder)!r}; give a run, an evaluation, or a folder that holds them")
        for run in _runs_in(folder, MAX_DEPTH):
            found.setdefault(run.resolve(), run)
    if not found:
        above = next((one for one in folders[0].absolute().parents if (one / "status.json").is_file()), None)
        hint = f"; it is inside of {str(above)!r}: give that" if above else ""
        raise UserError(f"there is no run and no evaluation in {', '.join(repr(str(one)) for one in folders)}{hint}")
    return list(found.values())


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "status.json").is_file():
        yield folder
    elif depth:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            names = sorted(one.name for one in entries if not one.name.startswith(".") and one.is_dir())
            for name in names:
                yield from _runs_in(folder / name, depth - 1)


def read_evaluations(runs: Sequence[Path], cache: Path | None, within: Sequence[Path] | None = None) -> Evaluations:
    """The evaluations of runs. cache: a folder for what was read; None reads all of it again.

    within: as `summary_of` takes it.
    """
    parents: dict[Path, list[Path]] = {}
    for run in runs:
        parents.setdefault(run.parent, []).append(run)
    entries: dict[Path, dict[str, Any]] = {}
    for parent, some in parents.items():
        entries |= _read_parent(parent, some, cache, within)
    found = [(run, entries[run]) for run in runs]
    return Evaluations(
        summaries=tuple(
            replace(EvaluationSummary.from_mapping(one), folder=str(run)) for run, entry in found for one in entry["of"]
        ),
        num_runs=len(runs),
        unfinished=tuple(str(run) for run, entry in found if entry["unfinished"]),
        shards=tuple(str(run) for run, entry in found if entry["shards"]),
        broken=tuple(dict.fromkeys(text for _, entry in found for text in entry["broken"])),
    )


def _read_parent(
    parent: Path, runs: Sequence[Path], cache: Path | None, within: Sequence[Path] | None
) -> dict[Path, dict[str, Any]]:
    path = None if cache is None else cache / f"summaries-{_key(parent, *(within or ()))}.json"
    kept = {} if path is None else _load(path)
    entries, now, fresh = {}, time.time_ns(), {}
    for run in runs:
        entry = kept.get(run.name)
        if entry is None or _stamps(run, entry) != entry["stamps"]:
            entry = _read_run(run, within)
            if all(stamp is None or stamp[2] < now - SETTLED_NS for stamp in entry["stamps"]):
                fresh[run.name] = entry
        entries[run] = entry
    if path is not None and fresh:
        there = {name: entry for name, entry in kept.items() if (parent / name).is_dir()}
        _save(path, there | fresh)
    return entries


def _read_run(run: Path, within: Sequence[Path] | None) -> dict[str, Any]:
    """What is kept of a run. stamps: taken before anything is read, so that a later change is noticed."""
    folder = RunFolder(run, None)
    entry: dict[str, Any] = {"steps": _steps(run), "made_by": [], "of": []}
    entry |= {"unfinished": [], "shards": [], "broken": []}
    stamps = _stamps(run, entry)
    for step in entry["steps"]:
        try:
            found = evaluation_summary(folder, step, within=within)
        except UserError as error:
            entry["broken"].append(str(error))
            continue
        if found is None:
            setup = read_record(folder, step).get("setup")
            is_shard = isinstance(setup, dict) and setup.get("shard")
            entry["shards" if is_shard else "unfinished"].append(step)
        else:
            entry["of"].append(found.to_mapping())
            entry["made_by"] += [found.run_dir] if found.run_dir else []
    entry["made_by"] = sorted({*entry["made_by"]})
    return entry | {"stamps": stamps + [_stamp(f"{one}/config.yaml") for one in entry["made_by"]]}


def _steps(run: Path) -> list[int]:
    """Of the evaluations, not by links."""
    found = []
    with contextlib.suppress(OSError), os.scandir(run / "evals") as entries:
        if not (run / "evals").is_symlink():
            names = [one.name for one in entries if one.is_file(follow_symlinks=False)]
            found = [int(match[1]) for name in names if (match := _RECORD.fullmatch(name))]
    return sorted(found)


def _stamps(run: Path, entry: dict[str, Any]) -> list[Stamp]:
    """Of all that the summaries of a run depend on. A folder's stamp changes when an entry is made or renamed."""
    files = [file for step in entry["steps"] for file in files_of(run, step)]
    paths = [f"{run}/evals", f"{run}/checkpoints", f"{run}/episodes", *dict.fromkeys(files)]
    return [_stamp(path) for path in (*paths, *(f"{one}/config.yaml" for one in entry["made_by"]))]


def _stamp(path: str) -> Stamp:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return [found.st_ino, found.st_size, found.st_mtime_ns]


def _key(*folders: Path) -> str:
    return hashlib.blake2b(b"\0".join(os.fsencode(one.resolve()) for one in folders), digest_size=12).hexdigest()


def _code() -> list[Stamp]:
    """Changes with the code that makes summaries."""
    return [_stamp(str(summary.__file__)), _stamp(__file__)]


def _load(path: Path) -> dict[str, dict[str, Any]]:
    try:
        record = json.loads(path.read_bytes())
        found = record["runs"] if record["code"] == _code() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _save(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Without waiting for the disk; where nothing can be written, nothing is kept."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"code": _code(), "runs": entries}, separators=(",", ":")), encoding="ascii")
        part.replace(path)
