"""What a person notes about a run or one of its evaluations: a text and tags, in the run's folder.

RUN/notes.json      {"run": {"text": "...", "tags": ["..."]}, "steps": {"20": {...}}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.runs.files import read_json, write_whole

NAME = "notes.json"
_TAG = re.compile(r"[\w.:+/=-]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    text: str = ""
    tags: tuple[str, ...] = ()


def read_note(run: Path, step: int | None = None) -> Note:
    """The note of a run; with a step, that of its evaluation of this step after it. Raises UserError for damage."""
    path = run / NAME
    saved: dict[str, Any] = dict(read_json(path)) if path.is_file() else {}
    whole = _note(saved.get("run"))
    if step is None:
        return whole
    own = _own(saved, step)
    text = "; ".join(filter(None, (whole.text, own.text)))
    return Note(text=text, tags=tuple(dict.fromkeys((*whole.tags, *own.tags))))


def write_note(run: Path, *, step: int | None, text: str | None, add: Iterable[str], remove: Iterable[str]) -> Note:
    """Changes the note of a run, or of its evaluation of a step. text: None leaves it, empty removes it.

    Returns what it is then. Raises UserError for a tag that is not one word.
    """
    for tag in (add := list(add)):
        if not _TAG.fullmatch(tag):
            raise UserError(f"{tag!r} can't be a tag; give one word of at most 40 letters, digits, and . _ : + / = -")
    path = run / NAME
    saved: dict[str, Any] = dict(read_json(path)) if path.is_file() else {}
    old = _note(saved.get("run")) if step is None else _own(saved, step)
    taken = {*remove}
    if missing := sorted(taken - {*old.tags}):
        known = f"it has {', '.join(old.tags)}" if old.tags else "it has none"
        raise UserError(f"there is no tag {missing[0]!r} to remove; {known}")
    tags = tuple(tag for tag in dict.fromkeys((*old.tags, *add)) if tag not in taken)
    new = Note(text=old.text if text is None else text, tags=tags)
    record = {"text": new.text, "tags": list(new.tags)}
    if step is None:
        saved["run"] = record
    else:
        steps = saved.get("steps")
        saved["steps"] = {**(steps if isinstance(steps, Mapping) else {}), str(step): record}
    write_whole(path, json.dumps(saved, indent=1).encode())
    return new


def _own(saved: Mapping[str, Any], step: int) -> Note:
    steps = saved.get("steps")
    return _note(steps.get(str(step)) if isinstance(steps, Mapping) else None)


def _note(saved: object) -> Note:
    if not isinstance(saved, Mapping):
        return Note()
    tags = saved.get("tags")
    return Note(text=str(saved.get("text", "")), tags=tuple(map(str, tags)) if isinstance(tags, list) else ())
