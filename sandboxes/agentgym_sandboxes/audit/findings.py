"""What the hostile suite found, trial by trial."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from enum import StrEnum

from agentgym.findings import Finding
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
class TrialResult:
    """How one trial went. tries: what it tried, on one line."""

    name: str
    category: Category
    tries: str
    outcome: Outcome
    detail: str
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How all trials of one backend went."""

    capabilities: Capabilities
    trials: tuple[TrialResult, ...]
    wall_s: float

    @property
    def holds(self) -> bool:
        """Whether nothing got through and everything that was run gave evidence."""
        return bool(self.trials) and not self.findings

    @property
    def findings(self) -> list[Finding]:
        """What got through, and what gave no evidence."""
        bad = [trial for trial in self.trials if trial.outcome in (Outcome.ESCAPED, Outcome.BROKEN)]
        return [Finding(kind=t.outcome.value, where=t.name, text=t.tries, detail=t.detail) for t in bad]

    def counts(self, category: Category | None = None) -> dict[Outcome, int]:
        """How many trials had each outcome."""
        found = [one.outcome for one in self.trials if category is None or one.category is category]
        return {outcome: count for outcome, count in collections.Counter(found).items() if count}
