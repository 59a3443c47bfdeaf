"""Reads the files of a run's folder for the audit: what can't be read is a fault, and never the end of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym.findings import Finding
from agentgym.runs.untrusted import MAX_NUMBER, Damaged, damage, number, read_object, read_objects


@dataclass(slots=True, kw_only=True)
class Audit:
    """status: of the run. steps: how many were judged. trained, skipped, played: episodes of training, and of
    evaluations. evaluations: steps whose evaluations were judged. findings: in the order found, of the kinds twice,
    lost, torn, stale, metrics, checkpoint, evaluation, state and left behind.

    notes: what is no fault, and what could not be judged. interrupted: files of evaluations that go on after the run.
    """

    status: str
    steps: int = 0
    trained: int = 0
    skipped: int = 0
    played: int = 0
    checkpoints: list[int] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: set[str] = field(default_factory=set)

    def fault(self, kind: str, where: str, text: str) -> None:
        self.findings.append(Finding(kind=kind, where=_shown(where), text=_shown(text)))

    def note(self, text: str) -> None:
        self.notes.append(_shown(text))


def _shown(text: str) -> str:
    """What a file says of itself may hold what moves a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:500])


def read_lines(path: Path, where: str, found: Audit) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The lines of a file that may be missing. Where it can't be read on, there is a fault."""
    try:
        yield from read_objects(path)
    except FileNotFoundError:
        return
    except Damaged as error:
        found.fault("torn", where, f"it can't be read to its end ({error})")


def gaps(there: Iterable[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """What is missing of the numbers from first to last, as ranges: a file may claim any number of them."""
    for one in sorted({one for one in there if first <= one <= last}):
        if one > first:
            yield first, one - 1
        first = one + 1
    if first <= last:
        yield first, last


def ranges(gaps: list[tuple[int, int]]) -> str:
    more = " and more" if len(gaps) > 10 else ""
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in gaps[:10]) + more


def by_step(folder: Path, pattern: str, found: Audit) -> dict[int, Path]:
    """Files or folders by the step in their names."""
    steps: dict[int, Path] = {}
    for path in sorted(folder.glob("step-*")) if folder.is_dir() else ():
        name = re.fullmatch(pattern, path.name, re.ASCII)
        if name is not None:
            steps[int(name[1])] = path
        elif not path.name.endswith((".part.jsonl", ".index.json", ".jsonl.gz")):
            found.note(f"{folder.name}/{path.name} is no name that a run gives")
    return steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What is judged of an episode. versions: of the weights that sampled it. broken: by infrastructure. success: None
    where it is unknown."""

    name: str
    group: int
    index: int
    trained: bool
    versions: list[int]
    task: str
    broken: bool
    success: bool | None


def read_episodes(file: Path, where: str, found: Audit) -> Iterator[Played]:
    """The lines of an episode file; one that can't be read to its end is a fault."""
    for line, record in read_lines(file, where, found):
        try:
            with damage():
                episode = (record or {})["episode"]
                played = Played(
                    name=str(episode["episode_id"])[:100],
                    group=number((record or {})["group_id"], MAX_NUMBER),
                    index=number((record or {})["index"], MAX_NUMBER),
                    trained=bool((record or {})["trained"]),
                    versions=[int(span[0]) for turn in episode["turns"] for span in turn["versions"]],
                    task=str(episode["task"]["task_id"])[:100],
                    broken=episode.get("outcome") == "infra_error",
                    success=_success(episode),
                )
        except Damaged as error:
            found.fault("torn", where, f"line {line} is not an episode ({error})")
            continue
        yield played


def _success(episode: Mapping[str, Any]) -> bool | None:
    said = (episode.get("info") or {}).get("success")
    if isinstance(said, bool):
        return said
    score = (episode.get("rewards") or {}).get("success")
    return bool(score) if score in (0, 1) else None


def read_record(file: Path, kind: str, found: Audit) -> dict[str, Any] | None:
    """The JSON object in a file; empty if there is no file, None if it is damaged."""
    try:
        return read_object(file)
    except FileNotFoundError:
        return {}
    except Damaged as error:
        found.fault(kind, file.name, f"it can't be read ({error})")
        return None
