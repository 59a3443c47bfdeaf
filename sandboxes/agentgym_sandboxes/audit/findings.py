"""What the hostile suite found, trial by trial."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from enum import StrEnum

from agentgym.sandbox import Capabilities


class Category(StrEnum):
    RESOURCES = "resources"  # processes, memory, disk, descriptors, output, time
    OUTLIVING = "outliving"  # going on after the call, or killing what runs it
    SURFACE = "surface"  # files, kernel, network, rights
    STATE = "state"  # what the next call could find
    HANDED_BACK = "handed_back"  # output, results and files as they reach our own process
    REWARD = "reward"  # grades that were not earned


class Outcome(StrEnum):
    CONTAINED = "contained"  # it was tried, and it did not get through
    ESCAPED = "escaped"
    NOT_CLAIMED = "not_claimed"  # the backend does not promise this; nothing was run
    UNSUPPORTED = "unsupported"  # the interpreter or machine cannot even try it
    BROKEN = "broken"  # no evidence either way: it did not run as intended


@dataclass(frozen=True, slots=True)
class Judgement:
    """The outcome of a trial. detail: the evidence, on one line."""

    outcome: Outcome
    detail: str


def contained(detail: str) -> Judgement:
    return Judgement(Outcome.CONTAINED, detail)


def escaped(detail: str) -> Judgement:
    return Judgement(Outcome.ESCAPED, detail)


def unsupported(detail: str) -> Judgement:
    return Judgement(Outcome.UNSUPPORTED, detail)


def broken(detail: str) -> Judgement:
    return Judgement(Outcome.BROKEN, detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How one trial went. tries: what it tried, on one line."""

    name: str
    category: Category
    tries: str
    outcome: Outcome
    detail: str
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings about one backend."""

    capabilities: Capabilities
    findings: tuple[Finding, ...]
    wall_s: float

    @property
    def holds(self) -> bool:
        """Whether nothing got through and everything that was run gave evidence."""
        bad = (Outcome.ESCAPED, Outcome.BROKEN)
        return bool(self.findings) and not any(finding.outcome in bad for finding in self.findings)

    def counts(self, category: Category | None = None) -> dict[Outcome, int]:
        """How many findings there are of each outcome."""
        found = [f.outcome for f in self.findings if category is None or f.category is category]
        return {outcome: count for outcome, count in collections.Counter(found).items() if count}
