"""One step's metrics, from all parts of the run. Each name is `area/what_unit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentgym.evals.statistics import unrecorded
from agentgym.loops.async_rl import StepRecord
from agentgym.rl.ending import unanimous
from agentgym.rollout.activity import Activity, since
from agentgym.rollout.agent_faults import DROPPED, dropped_fields
from agentgym.rollout.playing import HERE, Elsewhere
from agentgym.types import COUNTED_APART, CUT, Episode, Group, Outcome, Stop

KINDS = ("generate", "sandbox", "train", "reference", "publish")  # of activity, in every run
RARE = ("teacher", "critic", "save", "rollout")  # where there is one


@dataclass(slots=True)
class StepClock:
    """What was in flight since it was read last, or made."""

    activity: Activity
    _times_s: dict[str, float] = field(init=False)

    def __post_init__(self) -> None:
        self._times_s = self.activity.totals_s()

    def read(self) -> dict[str, float]:
        """time/<kind>_s is the wall time with at least one such call in flight; kinds may overlap.

        time/compute_share: the share of the wall time, time/step_s, with anything in flight.
        """
        totals = self.activity.totals_s()
        passed = since(totals, self._times_s)
        self._times_s = totals
        return {
            "time/step_s": passed["wall"],
            **{f"time/{kind}_s": passed.get(kind, 0.0) for kind in KINDS},
            **{f"time/{kind}_s": passed[kind] for kind in RARE if kind in passed},
            "time/compute_share": passed.get("any", 0.0) / passed["wall"],
        }


@dataclass(slots=True, kw_only=True)
class StepMeter:
    """Turns running totals into figures of one step."""

    clock: StepClock
    tokens_before: float = 0.0  # that the generators had sampled when the step began
    sandbox_before: Mapping[str, float] = field(default_factory=dict)  # its metrics then

    def start(self, generator: Mapping[str, float], sandbox: Mapping[str, float], elsewhere: Elsewhere = HERE) -> None:
        """The first step begins: what was before is not counted."""
        self.clock.read()
        sandbox = together(sandbox, elsewhere.sandbox)
        self.tokens_before = generator.get("generator/tokens_total", 0.0)
        self.sandbox_before = dict(sandbox)

    def read(
        self,
        record: StepRecord,
        generator: Mapping[str, float],
        sandbox: Mapping[str, float],
        elsewhere: Elsewhere = HERE,
    ) -> dict[str, float]:
        """Times are those of StepClock; of sampling and the sandbox those of the busiest rollout worker, if higher.

        sandbox/<what>_total counts since the sandbox started, sandbox/<what> since the last step's reading;
        its percentiles are of the latest calls, the other metrics are current values.
        """
        times = self.clock.read()
        for kind in elsewhere.times_s.keys() & {*KINDS}:
            times[f"time/{kind}_s"] = max(times[f"time/{kind}_s"], elsewhere.times_s[kind])
        generator, sandbox = generator_with(generator, elsewhere.generator), together(sandbox, elsewhere.sandbox)
        tokens = generator.get("generator/tokens_total", 0.0)
        metrics = {
            **rollout_metrics([e for g in [*record.groups, *record.skipped] for e in g.episodes]),
            **loop_metrics(record.groups, record.skipped, record.staleness),
            **record.metrics,
            **generator,
            "generator/tokens_per_s": (tokens - self.tokens_before) / times["time/step_s"],
            **sandbox,
            **counts_since(sandbox, self.sandbox_before),
            **elsewhere.workers,
            **times,
        }
        self.tokens_before = tokens
        self.sandbox_before = dict(sandbox)
        return metrics


def together(here: Mapping[str, float], elsewhere: Mapping[str, float]) -> dict[str, float]:
    """Figures of two processes as one: sums of what is counted or in flight, the larger of all others."""
    counted = {key for key in elsewhere if key.endswith(("_total", "/in_flight"))}
    return {
        key: here.get(key, 0.0) + value if key in counted else max(here.get(key, value), value)
        for key, value in {**here, **elsewhere}.items()
    }


def generator_with(here: Mapping[str, float], elsewhere: Mapping[str, float]) -> dict[str, float]:
    """The generators' metrics with those of requests from rollout workers, which have no `generator/`."""
    if not elsewhere:
        return dict(here)
    requests = {f"generator/{key}": value for key, value in elsewhere.items() if key != "demand"}
    found, slots = together(here, requests), here.get("generator/slots", 0.0)
    if slots:
        idle = here.get("generator/idle_share", 0.0) - elsewhere.get("demand", 0.0) / slots
        found["generator/idle_share"] = max(0.0, idle)
    return found


def loop_metrics(groups: Sequence[Group], skipped: Sequence[Group], staleness: Sequence[int]) -> dict[str, float]:
    return {
        **group_counts(groups, skipped),
        "loop/staleness_max": max(staleness),
        "loop/staleness_mean": _mean(staleness),
    }


def group_counts(groups: Sequence[Group], skipped: Sequence[Group]) -> dict[str, float]:
    """loop/skipped_right, loop/skipped_wrong: groups without signal whose episodes all succeeded, or all failed."""
    kinds = [unanimous(group) for group in skipped if not group.has_signal]
    return {
        "loop/groups": len(groups),
        "loop/skipped_groups": len(skipped),
        "loop/skipped_right": kinds.count(True),
        "loop/skipped_wrong": kinds.count(False),
    }


def counts_since(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """The growth of each `<name>_total`, as `<name>`."""
    return {
        name.removesuffix("_total"): value - before.get(name, 0.0)
        for name, value in now.items()
        if name.endswith("_total")
    }


def rollout_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Means over the episodes of a step; rewards and successes over those without infrastructure errors.

    rollout/success_mean: absent where no episode has a success that is known (`unrecorded`).
    rollout/truncated_share: of those that count, how many reached a limit of tokens or time before their end, and
    rollout/time_cut_share how many one of wall time, which is the machine's.
    rollout/tool_calls: how many those made, tool_malformed of them could not be read, and tool_errors were answered
    with another mistake of the agent. reward/<name>_missing: how many have no such score, where any has none.
    rollout/agent_failed_share: of those that count, in how many the agent's program failed, where it did in any.
    rollout/branches: how many began because an agent rewrote its history, by reason, where any did.
    rollout/dropped_<name>: how often that was dropped of an agent's requests, where it was.
    """
    counted = [e for e in episodes if e.outcome is not Outcome.INFRA_ERROR]
    broken = [e for e in episodes if e.outcome is Outcome.INFRA_ERROR]
    kinds = [e.error.kind for e in broken if e.error is not None]
    apart = {kind: kinds.count(kind) for kind in COUNTED_APART if kind != "cut"}  # training scores it
    errors = [call.error for e in counted for call in e.tool_calls]
    malformed = errors.count("malformed")
    metrics = {
        "rollout/episodes": len(episodes),
        "rollout/reward_mean": _mean([e.reward for e in counted if e.reward is not None]),
        "rollout/turns_mean": _mean([len(e.turns) for e in counted]),
        "rollout/completion_tokens_mean": _mean([e.num_sampled_tokens for e in counted]),
        "rollout/tool_calls": len(errors),
        "rollout/tool_malformed": malformed,
        "rollout/tool_errors": sum(map(bool, errors)) - malformed,
        "rollout/masked_turns": sum(turn.masked for e in counted for turn in e.turns),
        "rollout/invalid_share": _mean([float(e.outcome is Outcome.INVALID) for e in counted]),
        "rollout/truncated_share": _mean([float(e.stop in CUT) for e in counted]),
        "rollout/time_cut_share": _mean([float(bool(e.time_limit)) for e in counted]),
        "rollout/infra_errors": len(broken) - sum(apart.values()),
        **{f"rollout/{kind}": count for kind, count in apart.items()},
        "rollout/retries": sum(e.retries for e in episodes),
    }
    if unrecorded(e.known_success for e in counted) is not None:
        metrics["rollout/success_mean"] = _mean([float(e.known_success is True) for e in counted])
    if failed := [e for e in counted if e.stop is Stop.AGENT]:
        metrics["rollout/agent_failed_share"] = len(failed) / len(counted)
    reasons = Counter(why for e in counted for why in e.branch_reasons)
    if reasons:
        metrics["rollout/branches"] = reasons.total()
    metrics |= {f"rollout/branches_{why.replace(' ', '_')}": count for why, count in sorted(reasons.items())}
    metrics |= {f"{DROPPED}{k.replace(' ', '_')}": count for k, count in sorted(dropped_fields(counted).items())}
    for name in sorted({name for e in counted for name in e.rewards}):
        scores = [e.rewards[name] for e in counted if name in e.rewards]
        values = [score for score in scores if score is not None]
        if values:
            metrics[f"reward/{name}_mean"] = _mean(values)
        if len(values) < len(scores):
            metrics[f"reward/{name}_missing"] = len(scores) - len(values)
    return metrics


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
