"""Settings that were changed while a run went on, each with the step after which it was.

RUN/changes.jsonl   {"step": 12, "setting": "loop.max_staleness", "before": 1, "value": 3, "time": 1795335547.9}

A change holds from the next step on. A resume from an earlier step makes it again, after the same step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from agentgym.runs.files import append_line, dump_line, write_whole
from agentgym.runs.untrusted import MAX_NUMBER, Damaged, read_objects
from agentgym.yaml import dump_inline, value_at

FILE = "changes.jsonl"
Value: TypeAlias = bool | int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """step: the last one that was trained with `before`. setting: its dotted key."""

    step: int
    setting: str
    before: Value
    value: Value

    def __str__(self) -> str:
        return f"{self.setting} {dump_inline(self.before)} -> {dump_inline(self.value)}"


def read_changes(run: Path) -> list[Change]:
    """The changes in the order of their steps. Lines that are none are left out."""
    found = []
    try:
        for _, row in read_objects(run / FILE):
            match row or {}:
                case {"step": int(step), "setting": str(setting), "before": before, "value": value} if (
                    0 <= step <= MAX_NUMBER and is_value(before) and is_value(value)
                ):
                    found.append(Change(step=step, setting=setting[:100], before=before, value=value))
    except (FileNotFoundError, Damaged):
        pass
    return sorted(found, key=lambda one: one.step)


def is_value(given: object) -> bool:
    """Whether it is a switch or a finite number: all that can be changed."""
    return isinstance(given, (bool, int, float)) and math.isfinite(given)


def record_change(run: Path, change: Change) -> None:
    """Record it in place of the setting's changes after this step and later ones, which a resume would make again.

    One that changes nothing only removes those. Raises InfraError where the folder can't be written.
    """
    known = read_changes(run)
    kept = [one for one in known if one.setting != change.setting or one.step < change.step]
    if len(kept) < len(known):
        write_whole(run / FILE, "".join(dump_line(asdict(one)) + "\n" for one in kept).encode())
    if change.before != change.value:
        append_line(run / FILE, dump_line({**asdict(change), "time": time.time()}))


def values_at(changes: Sequence[Change], step: int) -> dict[str, Value]:
    """What each setting that was ever changed is in the step after `step`."""
    values = {one.setting: one.before for one in reversed(changes)}
    return values | {one.setting: one.value for one in changes if one.step <= step}


def with_values(config: Mapping[str, object], values: Mapping[str, Value]) -> dict[str, object]:
    """A copy of a config with other values by dotted key; those of sections that it lacks are left out."""
    changed = dict(config)
    for key, value in values.items():
        section, _, name = key.partition(".")
        if isinstance(inner := changed.get(section), Mapping):
            changed[section] = {**inner, name: value}
    return changed


def value_of(config: Mapping[str, object], changes: Iterable[Change], setting: str) -> object:
    """The newest value of a setting of a run with this config; None for an unknown one."""
    found = [one.value for one in changes if one.setting == setting]
    return found[-1] if found else value_at(config, setting)
