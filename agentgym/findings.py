"""What checks report, of environments, runs and their folders, and sandboxes: one type, in text and in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["problem", "warning", "note"]
RANK: Mapping[Severity, int] = {"problem": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing."""

    kind: str
    """A word from the check's own list, for scripts."""
    text: str
    """What was found, measured or counted, in one sentence."""
    severity: Severity = "problem"
    where: str = ""
    """What it is about: a probe, a reward, a file, a process, a trial, or the steps of a run."""
    detail: str = ""
    """The evidence, on lines of its own: a traceback's head, or examples."""
    meaning: str = ""
    """Why it matters."""
    advice: str = ""
    """What to do."""
    fields: tuple[str, ...] = ()
    """The fields of the recipe to look at, by dotted key."""
    metrics: tuple[str, ...] = ()
    """The curves that show it."""

    @property
    def rank(self) -> int:
        return RANK[self.severity]

    def to_mapping(self) -> dict[str, object]:
        """The finding as JSON has it; what is empty is left out."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name))}
