"""What a run's own figures say: one sentence, is it learning, and what is wrong if not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

from agentgym.evals.play import EvalResult, EvalSetup
from agentgym.evals.statistics import student_quantile
from agentgym.evals.symptoms import ENDED, TRUNCATED, Facts, find_symptoms, grade, with_remedy
from agentgym.findings import Finding
from agentgym.runs.curve import HELD_OUT_LOSS, LOSS, REWARD, SUCCESS
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.metrics import MetricsRow

Verdict: TypeAlias = Literal["learning", "unlearning", "no_change", "too_early", "ended"]
FEWEST_STEPS = 6  # of training, before two halves of them are compared
PAST_BEST = 0.1  # held-out success below that of the best evaluation that is worth a word
NAMES: Mapping[Verdict, str] = {
    "learning": "Learning",
    "unlearning": "Unlearning",
    "no_change": "No clear change",
    "too_early": "Too early to say",
    "ended": "Ended",
}
HEADS: Mapping[str, str] = {
    "not_finite": "Diverged",
    "evaluation_cut": "The machine was too slow",
    "never_succeeded": "Nothing has succeeded",
}
"""Findings that are the first thing to say of a run, and with which words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A finished evaluation of the weights after `step`."""

    step: int
    setup: EvalSetup
    result: EvalResult

    @classmethod
    def of(cls, step: int, record: Mapping[str, Any]) -> Self | None:
        """None for one that is not finished, or that another version saved: nothing is said of its numbers."""
        if not record.get("result"):
            return None
        try:
            setup, result = EvalSetup.from_mapping(record["setup"]), EvalResult.from_mapping(record["result"])
        except (TypeError, KeyError):
            return None
        return cls(step=step, setup=setup, result=result)

    def follows(self, first: Evaluation) -> bool:
        """Whether both played alike; the tasks of the smaller one are the first tasks of the larger."""
        a, b = first.setup, self.setup
        same = (a.environment, a.version, a.seed, a.greedy) == (b.environment, b.version, b.seed, b.greedy)
        return same and (a.num_tasks != b.num_tasks or a.data_hash == b.data_hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The change from first to last, with the 95% interval of the difference.

    paired: both played the same tasks with the same seeds, and count is the number of tasks; otherwise the two ends are
    training steps with tasks of their own, and count is the number of steps. smallest: the least true difference that
    as many tasks show in 8 of 10 comparisons; 0.0 where unknown. steps: of both ends.
    """

    what: str
    first: float
    last: float
    mean: float
    low: float
    high: float
    count: int
    paired: bool
    smallest: float
    steps: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """sentence: how the run ended, if for a reason, or what else comes before any figure; the verdict with its number;
    the likeliest cause where it is not learning.

    change: what the verdict rests on; None where nothing can be compared yet. findings: the gravest first.
    """

    verdict: Verdict
    sentence: str
    change: Change | None
    findings: tuple[Finding, ...]


def diagnose(run: RunFolder) -> Diagnosis:
    """Diagnoses a run that is running, has ended, or is a copy. Raises UserError for a folder that can't be read."""
    status = run.status()
    config = run.load_config() if (run.path / "config.yaml").is_file() else {}
    end = how_it_ended(status.status, status.reason)
    return diagnose_figures(run.read_metrics(), read_evaluations(run), config, **end)


def how_it_ended(status: str, reason: str) -> dict[str, str]:
    """The last arguments of `diagnose_figures`."""
    if status == RunStatus.RUNNING:
        return {}
    if status == RunStatus.DONE:
        return {"done": reason}
    return {"ended": f"{status}: {reason or 'its process was killed'}"}


def diagnose_figures(
    rows: Sequence[MetricsRow],
    evaluations: Sequence[Evaluation] = (),
    config: Mapping[str, object] | None = None,
    ended: str = "",
    done: str = "",
) -> Diagnosis:
    """rows, evaluations: by step. config: as saved with the run. ended: why the run ended, if it did not end well.

    done: why it was done before its last step.
    """
    facts = Facts.of(rows, config or {}, ended)
    change = _held_out(evaluations) or _training(facts)
    verdict: Verdict = "ended" if ended or done else "too_early"
    if change is not None:
        verdict = "learning" if change.low > 0 else "unlearning" if change.high < 0 else "no_change"
    if change is not None and change.what in LOSS_NAMES:  # a loss is better when it falls
        verdict = "learning" if change.high < 0 else "unlearning" if change.low > 0 else "no_change"
    findings = find_symptoms(facts)
    also = (_cut(evaluations), _past_best(evaluations))
    findings = sorted([*findings, *filter(None, also)], key=lambda one: one.rank)
    return Diagnosis(
        verdict=verdict,
        sentence=_sentence(verdict, change, findings, rows, done),
        change=change,
        findings=tuple(findings),
    )


def read_evaluations(run: RunFolder) -> list[Evaluation]:
    """Reads the evaluations that are finished and of this version, by step."""
    found = (Evaluation.of(step, read_record(run, step)) for step in run.episode_steps(evaluation=True))
    return [one for one in found if one is not None]


LOSS_NAMES = ("held-out loss", "training loss")


def _held_out(evaluations: Sequence[Evaluation]) -> Change | None:
    """The newest evaluation against the first that played the same tasks."""
    if len(evaluations) < 2:
        return None
    last = evaluations[-1]
    first = next((one for one in evaluations[:-1] if one.result.num_episodes and last.follows(one)), None)
    return None if first is None else _paired(first, last)


def _paired(first: Evaluation, last: Evaluation) -> Change | None:
    before, after = last.result.beside(first.result)
    try:
        found = last.result.difference_from(first.result)
    except ValueError:
        return None
    return Change(
        what=f"held-out {last.result.measure}",
        first=_mean([float(x) for row in before for x in row if x is not None]),
        last=_mean([float(x) for row in after for x in row if x is not None]),
        mean=found.mean,
        low=found.low,
        high=found.high,
        count=found.num_tasks,
        paired=True,
        smallest=found.smallest,
        steps=(first.step, last.step),
    )


def _training(facts: Facts) -> Change | None:
    """The last third of the steps against the first third: success, or reward, or the loss of fine-tuning."""
    for key, what in (
        (SUCCESS, "success in training"),
        (HELD_OUT_LOSS, LOSS_NAMES[0]),
        (LOSS, LOSS_NAMES[1]),
        (REWARD, "reward"),
    ):
        known = [(row.step, row.metrics[key]) for row in facts.rows if math.isfinite(row.metrics.get(key, math.nan))]
        if len(known) >= FEWEST_STEPS and not (key == SUCCESS and facts.never_succeeded):
            return _ends(known, what)
    return None


def _ends(known: Sequence[tuple[int, float]], what: str) -> Change:
    """Welch's interval of the difference of two means.

    Each step is one draw, so a slope within an end widens the interval.
    Source: B. L. Welch, The generalization of "Student's" problem, Biometrika 34 (1947).
    """
    third = max(3, len(known) // 3)
    early, late = ([value for _, value in part] for part in (known[:third], known[-third:]))
    (a, error_a), (b, error_b) = _with_error(early), _with_error(late)
    total = error_a + error_b
    half = 0.0
    if total > 0:
        degrees = total**2 / ((error_a**2 + error_b**2) / (third - 1))
        half = student_quantile(0.95, max(1, math.floor(degrees))) * math.sqrt(total)
    return Change(
        what=what, first=a, last=b, mean=b - a, low=b - a - half, high=b - a + half, count=2 * third, paired=False,
        smallest=0.0, steps=(known[0][0], known[-1][0]),
    )  # fmt: skip


def _cut(evaluations: Sequence[Evaluation]) -> Finding | None:
    """The newest evaluation of which the machine was too slow for some episodes."""
    last = next((one for one in reversed(evaluations) if one.result.num_cut), None)
    if last is None:
        return None
    cut, total = last.result.num_cut, last.result.num_cut + last.result.num_episodes
    text = f"{cut} of {total} held-out episodes after step {last.step} were cut by {last.result.cut_by} s of wall time"
    severity = grade(cut / total, TRUNCATED) if last is evaluations[-1] else "note"  # the limit was raised since
    return with_remedy("evaluation_cut", severity, text, (last.step, last.step))


def _past_best(evaluations: Sequence[Evaluation]) -> Finding | None:
    """The last evaluation is clearly below the best: an earlier checkpoint is the better policy."""
    if len(evaluations) < 3:
        return None
    last = evaluations[-1]
    best = max(evaluations[:-1], key=lambda one: one.result.success or 0.0)
    known = None not in (best.result.success, last.result.success)  # a reward's scale has no threshold
    fall = _paired(best, last) if known and last.follows(best) else None
    if fall is None or fall.high >= 0 or fall.mean > -PAST_BEST:
        return None
    interval = f"{fall.mean:+.3f} [{fall.low:+.3f}, {fall.high:+.3f}], {fall.count} tasks"
    text = f"held-out success was {fall.first:.3f} after step {best.step}, and {fall.last:.3f} now: {interval}"
    return with_remedy("past_best", "warning", text, (best.step, last.step))


def _sentence(
    verdict: Verdict, change: Change | None, findings: Sequence[Finding], rows: Sequence[MetricsRow], done: str
) -> str:
    said, head = _head(verdict, change, findings, rows, done)
    sentences = [head, _verdict(verdict, change, len(rows), whole=not head)]
    cause = next((one for one in findings if one.severity != "note" and one is not said), None)
    if cause is not None and not (verdict == "learning" and cause.severity != "problem"):
        lead = "But" if verdict == "learning" else "Look first at this"
        sentences.append(f"{lead}: {cause.text}.")
    return " ".join(filter(None, sentences))


def _head(
    verdict: Verdict, change: Change | None, findings: Sequence[Finding], rows: Sequence[MetricsRow], done: str
) -> tuple[Finding | None, str]:
    """What counts before any figure, and the finding that says so."""
    problems = {one.kind: one for one in findings if one.severity == "problem"}
    if "ended" in problems:
        how, _, why = problems["ended"].text.removeprefix(ENDED).partition(": ")
        when = f"after step {rows[-1].step}" if rows else "before its first step"
        return problems["ended"], f"{how.capitalize()} {when}: {why.rstrip('.')}."
    if done:
        return None, f"{done[0].upper()}{done[1:].rstrip('.')}."
    if verdict == "learning" or (change is not None and change.paired and max(change.first, change.last) > 0):
        problems.pop("never_succeeded", None)  # its reward rises, or held-out tasks were solved
    name = next((name for name in HEADS if name in problems), None)
    if name is None:
        return None, ""
    advice = f" {problems[name].advice}." if name == "never_succeeded" else ""
    return problems[name], f"{HEADS[name]}: {problems[name].text}.{advice}"


def _verdict(verdict: Verdict, change: Change | None, num_steps: int, *, whole: bool) -> str:
    """whole: also where there is nothing to compare yet."""
    if change is None:
        done = "no step is finished" if not num_steps else f"only {num_steps} step(s) are finished"
        return f"{NAMES[verdict]}: {done}, and two evaluations of the same held-out tasks are not there." * whole
    kind = f"paired by task, n = {change.count} tasks" if change.paired else f"n = {change.count} steps, not paired"
    text = (
        f"{NAMES[verdict]}: {change.what} went from {change.first:.3f} to {change.last:.3f}, "
        f"{change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}] (95%, {kind}, steps {change.steps[0]} to "
        f"{change.steps[1]})."
    )
    if verdict == "no_change" and 0 < change.smallest < 1:
        text += f" A true change of {change.smallest:.2f} would have shown in 8 of 10 such comparisons."
    return text


def _with_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the square of its standard error."""
    mean = _mean(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
