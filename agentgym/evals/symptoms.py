"""What can be wrong with a run: each with a threshold, and the reason for its value beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgym.evals.remedies import REMEDIES
from agentgym.findings import Finding, Severity
from agentgym.runs.curve import REWARD, SUCCESS
from agentgym.runs.metrics import MetricsRow
from agentgym.yaml import flat

RECENT = 10  # steps that a finding looks at, or half of a shorter run
FIRST = 5  # steps that it compares them with
NO_SIGNAL = 0.5, 0.8  # share of groups: half of what was played taught nothing; four fifths
NEARLY_ALL, NEARLY_NONE = 0.9, 0.1  # success in training at which no signal means too easy, or too hard
ENTROPY_FELL = 0.1  # of what it was at the start
ENTROPY_LOW = 0.05  # nats a token: about one token in a hundred is a real choice
ENTROPY_ROSE = 3.0  # times what it was
LENGTH_ROSE, LENGTH_FELL = 2.0, 1 / 3  # times the tokens of an episode at the start
TRUNCATED = 0.1, 0.4  # share of episodes that reached a limit
INVALID = 0.2  # share of episodes that broke the rules, without those that were cut
SYNC = 0.2, 1.0  # nats, the largest right after an update: bfloat16 alone gives 0.03 (docs/results.md)
ENGINE = 0.01, 0.1  # nats a token, k3 on tokens of the trained weights: bfloat16 gives 0.00005 (docs/results.md)
DRIFT = 0.05, 0.5  # nats a token, k3 of trainer against sampler: one version old it is 0.001 to 0.02
CLIPPED = 0.3  # share of tokens whose gradient the clip stopped
UNTRUSTED = 0.3  # share of tokens whose weight against the sampler is beyond the loss's bounds
KL = 0.5, 2.0  # nats a token, k3 of policy against reference
STALE = 4.0  # versions in the mean; up to 3 cost nothing that was measured (docs/results.md)
INFRA = 0.01, 0.1  # share of episodes that infrastructure broke
MISSING = 0.05  # share of episodes without one of their scores
BUSY, REST = 0.9, 0.3  # share of the time with such a call in flight
IN_FLIGHT = 0.7  # share of the time with any
NORM_SPIKE = 20.0  # times the median gradient norm of the steps before
FELL = 0.1  # success in training, where the rewards did not fall with it
PAID = 0.2, 5.0  # by which the reward rose, and times as much as success did
TRIED = 3  # steps of which none had a success, before that is worth a word
ENDED = "the run ended early, "
RESTARTS = "restarts_total"  # of a process of the run, since the run's own process began
UNCORRECTED = "reinforce"  # the loss that takes every sample as new


def with_remedy(kind: str, severity: Severity, text: str, steps: tuple[int, int]) -> Finding:
    """A symptom with what `REMEDIES` says of its kind. steps: the first and the last that it is about."""
    remedy = REMEDIES[kind]
    return Finding(
        kind=kind,
        severity=severity,
        text=text,
        where=f"steps {steps[0]} to {steps[1]}",
        meaning=remedy.meaning,
        advice=remedy.advice,
        fields=remedy.fields,
        metrics=remedy.metrics,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The rows of a run and its config by dotted key. ended: why it ended, if it did not end well."""

    rows: Sequence[MetricsRow]
    config: Mapping[str, object]
    ended: str

    @classmethod
    def of(cls, rows: Sequence[MetricsRow], config: Mapping[str, object], ended: str) -> Facts:
        return cls(rows=rows, config=flat(config), ended=ended)

    @property
    def recent_rows(self) -> Sequence[MetricsRow]:
        return self.rows[-min(RECENT, max(1, len(self.rows) // 2)) :]

    @property
    def steps(self) -> tuple[int, int]:
        return (self.recent_rows[0].step, self.recent_rows[-1].step) if self.rows else (0, 0)

    def values(self, key: str, *, recent: bool = False) -> list[float]:
        """The finite values."""
        found = (row.metrics.get(key, math.nan) for row in (self.recent_rows if recent else self.rows))
        return [value for value in found if math.isfinite(value)]

    def recent(self, key: str) -> float | None:
        """The mean over the recent steps that have it."""
        return _mean(self.values(key, recent=True))

    def early(self, key: str) -> float | None:
        """The mean over the first steps that are not recent."""
        count = min(FIRST, len(self.rows) - len(self.recent_rows))
        return _mean([value for row in self.rows[:count] if math.isfinite(value := row.metrics.get(key, math.nan))])

    def share(self, part: str, whole: str) -> float:
        """The ratio of two sums over the recent steps."""
        total = math.fsum(self.values(whole, recent=True))
        return math.fsum(self.values(part, recent=True)) / total if total else 0.0

    @property
    def fine_tunes(self) -> bool:
        """Whether the run learns from demonstrations: nothing is played, and nothing is sampled."""
        return any(key.startswith("sft.") for key in self.config) or any("sft/loss" in row.metrics for row in self.rows)

    @property
    def never_succeeded(self) -> bool:
        values = self.values(SUCCESS)
        return len(values) >= TRIED and not any(values)

    @property
    def corrected(self) -> bool:
        """Whether the loss allows for samples of an older policy."""
        return self.config.get("loss.name") != UNCORRECTED


Seen: TypeAlias = tuple[str, Severity, str]
"""A finding's name, its severity, and what was measured."""
Check: TypeAlias = Callable[[Facts], Iterator[Seen]]


def find_symptoms(facts: Facts) -> list[Finding]:
    """The gravest first."""
    seen: list[Seen] = []
    if facts.ended:
        seen.append(("ended", "problem", f"{ENDED}{' '.join(facts.ended.split()):.300}"))
    if facts.rows:
        seen += [one for check in (CHECKS_OF_TUNING if facts.fine_tunes else CHECKS) for one in check(facts)]
    if any(name == "never_succeeded" for name, *_ in seen):
        seen = [one for one in seen if one[0] not in FOLLOWS]
    found = [with_remedy(name, severity, text, facts.steps) for name, severity, text in seen]
    return sorted(found, key=lambda one: one.rank)


def _numbers(facts: Facts) -> Iterator[Seen]:
    keys = ("train/loss", "train/grad_norm", "sft/loss")
    if broken := [row.step for row in facts.rows if any(math.isnan(row.metrics.get(key, 0.0)) for key in keys)]:
        yield "not_finite", "problem", f"loss or gradient was not a number in step {broken[0]}"


def _successes(facts: Facts) -> Iterator[Seen]:
    if facts.never_succeeded:
        episodes = math.fsum(facts.values("rollout/episodes"))
        played = f"{episodes:.0f} episodes" if episodes else "episodes"
        yield "never_succeeded", "problem", f"none of the {played} of {len(facts.rows)} steps succeeded"


def _gradient(facts: Facts) -> Iterator[Seen]:
    rates, norms = facts.values("train/lr"), facts.values("train/grad_norm")
    if rates and not any(rates):
        yield "rate_zero", "problem", "the learning rate was 0 in every step"
    if norms and not any(norms):
        yield "gradient_zero", "problem", "the gradient was 0 in every step"
    recent = facts.values("train/grad_norm", recent=True)
    before = sorted(norms[: len(norms) - len(recent)])
    median, largest = before[len(before) // 2] if before else 0.0, max(recent, default=0.0)
    if median and largest > NORM_SPIKE * median:
        text = f"the gradient norm reached {largest:.3g}, {largest / median:.0f} times the median of the steps before"
        yield "gradient_spike", "warning", text


def _rewards(facts: Facts) -> Iterator[Seen]:
    """Success falls and the reward does not: what is paid for is something else."""
    before, now = facts.early(SUCCESS), facts.recent(SUCCESS)
    reward_before, reward_now = facts.early(REWARD), facts.recent(REWARD)
    if before is not None and now is not None and reward_before is not None and reward_now is not None:
        lost, kept = before - now, reward_now - reward_before
        if lost >= FELL and kept > -lost / 2:
            text = f"success in training fell by {lost:.2f} while the reward went {kept:+.2f}"
            yield "rewards_do_not_pay", "problem", text
        elif kept >= PAID[0] and kept > -PAID[1] * lost and before > 0 and now < NEARLY_ALL:
            text = f"the reward rose by {kept:.2f} while success in training went {-lost:+.2f}"
            yield "rewards_do_not_pay", "warning", text
    for key in sorted({key for row in facts.recent_rows for key in row.metrics}):
        if key.startswith("reward/") and key.endswith("_missing"):
            share = facts.share(key, "rollout/episodes")
            if share >= MISSING:
                name = key.removeprefix("reward/").removesuffix("_missing")
                yield "reward_missing", "warning", f"the reward {name} is missing in {share:.0%} of episodes"


def _staleness(facts: Facts) -> Iterator[Seen]:
    mean, taken = facts.recent("loop/staleness_mean"), ", and the loss reinforce takes them as new"
    if mean is not None and mean >= STALE:
        text = f"tokens are {mean:.1f} versions old in the mean when they are trained"
        yield "staleness", "warning" if facts.corrected else "problem", text if facts.corrected else text + taken


def _mismatch(facts: Facts) -> Iterator[Seen]:
    sync = facts.recent("sync/mismatch_max")
    if sync is not None and sync >= SYNC[0]:
        text = f"right after an update generators and trainer differ by up to {sync:.2f} nats a token"
        yield "mismatch", grade(sync, SYNC), text
    engine = facts.recent("mismatch/engine_kl")
    if engine is not None and engine >= ENGINE[0]:
        text = f"generators and trainer differ by {engine:.2f} nats a token on tokens that the trained weights sampled"
        yield "engine_mismatch", grade(engine, ENGINE), text
    aged = facts.recent("mismatch/staleness_kl")
    drift = facts.recent("train/mismatch_kl") if aged is None else aged
    if drift is not None and drift >= DRIFT[0]:
        how = "which the loss corrects for" if facts.corrected else "which the loss reinforce does not correct for"
        text = f"the policy is {drift:.2f} nats a token from the one that sampled its data, {how}"
        yield "drift", grade(drift, DRIFT) if facts.corrected else "problem", text
    clipped = facts.recent("train/clip_share")
    if clipped is not None and clipped >= CLIPPED:
        yield "clipped", "warning", f"{clipped:.0%} of tokens are clipped"
    cut = facts.recent("train/correction_cut_share")
    if cut is not None and cut >= UNTRUSTED:
        masked = str(facts.config.get("loss.correction", "")).endswith("mask")
        how = "left out" if masked else "weighed by a bound instead of their ratio"
        yield (
            "correction_cut",
            "warning",
            f"{cut:.0%} of tokens are {how}: the sampler's policy is too far from the trainer's",
        )


def _no_signal(facts: Facts) -> Iterator[Seen]:
    skipped, groups, right, wrong = (
        math.fsum(facts.values(f"loop/{key}", recent=True))
        for key in ("skipped_groups", "groups", "skipped_right", "skipped_wrong")
    )
    share, success = skipped / max(1.0, skipped + groups), facts.recent(SUCCESS)
    if share < NO_SIGNAL[0]:
        return
    kinds = f" ({right:.0f} all right, {wrong:.0f} all wrong, {skipped - right - wrong:.0f} other)"
    text = f"{share:.0%} of groups have no signal{kinds if right + wrong else ''}"
    if success is None:
        yield "no_signal", grade(share, NO_SIGNAL), text
        return
    text += f"; success in training is {success:.2f}"
    if success >= NEARLY_ALL:
        yield "no_signal_right", "note", text
    elif success <= NEARLY_NONE or wrong > 2 * right:
        yield "no_signal_wrong", grade(share, NO_SIGNAL), text
    else:
        yield "no_signal_right" if right > 2 * wrong else "no_signal", grade(share, NO_SIGNAL), text


def _entropy(facts: Facts) -> Iterator[Seen]:
    now, before = facts.recent("train/entropy"), facts.early("train/entropy")
    if now is None or not before:
        return
    text = f"the policy's entropy went from {before:.3f} to {now:.3f} nats a token"
    if now < min(ENTROPY_FELL * before, ENTROPY_LOW) and (facts.recent(SUCCESS) or 0.0) < NEARLY_ALL:
        yield "entropy_collapse", "problem", text
    elif now > max(ENTROPY_ROSE * before, ENTROPY_LOW):
        yield "entropy_explosion", "warning", text


def _lengths(facts: Facts) -> Iterator[Seen]:
    cut, late = (facts.recent(f"rollout/{key}_share") or 0.0 for key in ("truncated", "time_cut"))
    if late >= TRUNCATED[0]:
        yield "cut_by_time", grade(late, TRUNCATED), f"{late:.0%} of episodes reached a limit of wall time"
    if cut - late >= TRUNCATED[0]:
        yield "truncation", grade(cut - late, TRUNCATED), f"{cut - late:.0%} of episodes reached a limit of tokens"
    invalid = (facts.recent("rollout/invalid_share") or 0.0) - cut
    if invalid >= INVALID:
        yield "invalid", "warning", f"{invalid:.0%} of episodes broke the environment's rules and earned the floor"
    now, before = facts.recent("rollout/completion_tokens_mean"), facts.early("rollout/completion_tokens_mean")
    if now is not None and before:
        text = f"the tokens of an episode went from {before:.0f} to {now:.0f}"
        if now > LENGTH_ROSE * before:
            yield "length_explosion", "warning", text
        elif now < LENGTH_FELL * before:
            yield "length_collapse", "warning", text


def _reference(facts: Facts) -> Iterator[Seen]:
    now, before = facts.recent("train/kl_ref"), facts.early("train/kl_ref")
    if now is not None and now >= KL[0]:
        grew = "" if before is None else f" (at the start {before:.3f})"
        yield "kl_growth", grade(now, KL), f"the policy is {now:.2f} nats a token from the reference{grew}"


def _infrastructure(facts: Facts) -> Iterator[Seen]:
    share, limit = (
        facts.share("rollout/infra_errors", "rollout/episodes"),
        facts.config.get("rollout.max_infra_error_share"),
    )
    if share >= INFRA[0]:
        ends = f" (the run ends at {limit:.0%})" if isinstance(limit, float) else ""
        yield "infra_errors", grade(share, INFRA), f"{share:.1%} of episodes were broken by infrastructure{ends}"


def _restarts(facts: Facts) -> Iterator[Seen]:
    for name in ("trainer", "reference"):
        totals = [row.metrics.get(f"{name}/{RESTARTS}", 0.0) for row in facts.rows]
        pairs = zip([0.0, *totals], totals, strict=False)
        new = [max(0.0, now - before) for before, now in pairs]  # a resumed run counts from 0
        if count := math.fsum(new):
            lately = math.fsum(new[-len(facts.recent_rows) :])
            times = f"{count:.0f} time{'s' * (count > 1)}, {lately:.0f} of them lately"
            yield "restarts", "warning" if lately else "note", f"the {name} was lost and started again {times}"


def _waiting(facts: Facts) -> Iterator[Seen]:
    """Where the time goes: never what keeps a run from learning, so these are notes."""
    if facts.recent("time/generate_s") is None or facts.recent("time/step_s") is None:
        return
    share = {kind: facts.share(f"time/{kind}_s", "time/step_s") for kind in ("generate", "sandbox", "train")}
    if not any(share.values()) or not share["generate"]:
        return  # fine-tuning: nothing is sampled
    shown = ", ".join(f"{kind} {part:.0%}" for kind, part in share.items())
    in_flight, slowest = facts.recent("time/compute_share"), max(share["generate"], share["sandbox"])
    if in_flight is not None and in_flight < IN_FLIGHT:
        yield "idle", "note", f"for {1 - in_flight:.0%} of the time nothing was computed ({shown})"
    elif share["train"] < REST and slowest > BUSY - REST:
        kind = "generation" if share["generate"] >= share["sandbox"] else "sandbox"
        yield f"waits_for_{kind}", "note", f"the trainer computed for {share['train']:.0%} of the time ({shown})"
    elif share["train"] > BUSY and slowest < 1 - REST:
        yield "waits_for_trainer", "note", f"generation ran for {share['generate']:.0%} of the time ({shown})"


CHECKS: tuple[Check, ...] = (
    _numbers,
    _gradient,
    _successes,
    _rewards,
    _staleness,
    _mismatch,
    _entropy,
    _no_signal,
    _lengths,
    _reference,
    _infrastructure,
    _restarts,
    _waiting,
)
"""In the order in which findings of the same severity are given: causes before what follows from them."""
CHECKS_OF_TUNING: tuple[Check, ...] = (_numbers, _gradient, _restarts)
FOLLOWS = ("staleness", "drift", "clipped", "correction_cut", "entropy_collapse", "entropy_explosion",
           "no_signal_wrong", "kl_growth", "length_explosion", "length_collapse")  # fmt: skip
"""What is no cause where nothing has ever succeeded: no reward has said yet where to go."""


def grade(value: float, bounds: tuple[float, float]) -> Severity:
    return "problem" if value >= bounds[1] else "warning"


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
