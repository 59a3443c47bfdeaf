"""What a check reports: findings by the name of the fault, what each probe earned, and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from agentgym.evals.audit.watched import head
from agentgym.findings import Finding
from agentgym.held_loop import HeldTooLong

KINDS: Mapping[str, str] = {
    "gamed": "something that is not a right answer is rewarded like one",
    "oracle_loses": "the environment's own right answer is not rewarded as right",
    "small_gap": "the best probe earns almost what the right answer earns",
    "crash": "the environment, a tool or a reward raises",
    "hang": "a call or a reward takes longer than its time limit",
    "out_of_range": "a reward gives nan, infinity, or more or less than its range",
    "blocks": "a call holds the event loop that all episodes share",
    "slow_tasks": "the tasks take too long to make",
    "slow_rewards": "scoring an ordinary episode takes too long",
    "tasks_change": "the same seed gives other tasks, at another time or in another process",
    "scores_change": "the same episode gets another reward in another process",
    "shared_state": "episodes that are played at the same time disturb each other",
    "bad_task": "a task is not one that can be played",
    "not_json": "an answer is not JSON, so it cannot be saved",
    "no_tasks": "a split has no task",
    "endless_test": "the test split does not end",
    "equal_ids": "different tasks have the same id",
    "repeated_tasks": "the test split has a task twice",
    "split_overlap": "test tasks are in the train split, too",
    "structure_overlap": "test tasks have a structure that the environment promises to keep out of the train split",
    "long_prompt": "a prompt leaves the agent no token of the episode's limit",
}
"""The kinds of findings, and what each means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What one probe earned, of its best variant. reward: the mean over scored episodes; None without any.

    success: the share of its tasks in which the environment recorded success; None where it recorded none.
    seconds: of all its episodes.
    """

    probe: str
    variant: str
    what: str
    episodes: int
    reward: float | None
    success: float | None
    finding: bool = False
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Report:
    """One check of one environment. floor: the most that a probe earned; gap: oracle minus floor.

    notes: what was left out, and what a reader should know although it is no fault. figures: counts and shares.
    allowed: findings that the caller accepts.
    """

    environment: str
    version: int
    agentgym: str
    options: Mapping[str, object]
    weights: Mapping[str, float]
    sandbox: str = ""
    oracle: float | None = None
    floor: float | None = None
    probes: list[ProbeResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    allowed: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def gap(self) -> float | None:
        return None if self.oracle is None or self.floor is None else self.oracle - self.floor

    @property
    def hangs(self) -> bool:
        return any(found.kind == "hang" for found in self.findings)

    def add(self, kind: str, where: str, text: str, detail: str = "") -> None:
        """Add a finding, once for a kind and place. kind: one of `KINDS`. where: the probe, split or reward."""
        assert kind in KINDS, kind
        if all((found.kind, found.where) != (kind, where) for found in self.findings):
            self.findings.append(Finding(kind=kind, where=where, text=text, detail=detail))

    def add_error(self, where: str, message: str, error: Exception) -> None:
        """Add what the environment's own code raised, outside of an episode."""
        kind = "hang" if isinstance(error.__cause__, HeldTooLong) else "crash"
        self.add(kind, where, message, head(error))

    def to_mapping(self) -> dict[str, object]:
        shown = {name: [one.to_mapping() for one in getattr(self, name)] for name in ("findings", "allowed")}
        return {**asdict(self), **shown, "gap": self.gap, "clean": not self.findings}
