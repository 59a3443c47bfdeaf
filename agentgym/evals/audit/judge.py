"""Turns episodes into findings: what crashed, what held the others up, what was rewarded that should not be."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from agentgym.evals.audit.findings import ProbeResult, Report
from agentgym.evals.audit.oracle import Solution, most_frequent
from agentgym.evals.audit.stage import Played
from agentgym.evals.statistics import unrecorded

WON_SHARE, WON_TASKS = 0.1, 2  # more than the share, and at least so many tasks: one may be chance
EARNED_SHARE = 0.5  # of what the oracle earns, counted from the least that the rewards can give
SMALL_GAP = 0.1
SLOW_REWARD_S = 0.5
UNRECORDED = (
    "episodes that fail have no `success` in `info`: record False in `start`, or where all fail it counts as unknown"
)
ORACLE = "the environment's own right answers"


@dataclass(slots=True)
class Judge:
    """Judges the episodes of one check. least: what the rewards can give at least.

    chance: the share of tasks with the most frequent right answer, which anybody has who always says it.
    """

    report: Report
    least: float
    chance: float = 0.0
    records: bool = False  # whether the environment recorded the success of the right answers

    def oracle(self, solutions: Sequence[Solution], played: Sequence[Played], seconds: float) -> None:
        """What the right answers earned."""
        report, judged = self.report, _judged(played)
        crashed = self.faults("oracle", "", played)
        self.chance = most_frequent(solutions)
        report.figures["most_frequent_answer"] = self.chance
        self.records = records = unrecorded(one.episode.known_success for one in judged) is not None
        if judged and not records:
            report.notes.append("no `success` is recorded in `info`: what a probe earns is judged by its reward alone")
        lost = [one for one in judged if one.episode.reward is None or (records and not one.episode.success)]
        if lost:
            ids = ", ".join(one.episode.task.task_id for one in lost[:5])
            message = f"{len(lost)} of {len(judged)} right answers are not rewarded as right: {ids}"
            report.add("oracle_loses", "oracle", message, _said(lost[0]))
        result = _result("oracle", "", ORACLE, judged, seconds, records)
        report.oracle = result.reward
        report.probes.append(replace(result, finding=bool(lost) or crashed))
        took = [one.episode.timing_s.get("score_s", 0.0) for one in judged]
        if took and median(took) > SLOW_REWARD_S:
            report.add("slow_rewards", "rewards", f"scoring an episode takes {median(took):.1f} s")
        self._count_unsupported("the oracle", played)

    def probe(
        self, name: str, what: str, by_variant: Mapping[str, Sequence[Played]], allowed: Collection[str], seconds: float
    ) -> None:
        """What a probe earned, as its best variant. allowed: variants that may be rewarded."""
        results = []
        for variant, played in by_variant.items():
            judged = _judged(played)
            result = _result(name, variant, what, judged, seconds, self.records)
            crashed = self.faults(name, variant, played)
            gamed = variant not in allowed and self._is_gamed(result, judged)
            results.append(replace(result, finding=gamed or crashed))
            if variant not in allowed or name == "usual":
                self._raise_floor(result)
            elif result.success:
                self.report.notes.append(f"{name}, {variant}: success in {result.success:.0%}, which may be right")
            if self.records and UNRECORDED not in self.report.notes:
                self.report.notes += [UNRECORDED] * any(one.episode.known_success is None for one in judged)
        if results:
            best = max(results, key=lambda one: (one.success or 0.0, self.least if one.reward is None else one.reward))
            self.report.probes.append(replace(best, finding=any(one.finding for one in results)))

    def compare(self) -> None:
        """The gap between the oracle and the best probe."""
        report, gap = self.report, self.report.gap
        if gap is None or report.oracle is None or any(found.kind == "gamed" for found in report.findings):
            return
        if gap <= SMALL_GAP * max(report.oracle - self.least, 0.0):
            message = f"the best probe earns {report.floor:.3f}, the right answer {report.oracle:.3f}"
            report.add("small_gap", "rewards", message)

    def held(self, name: str, held_s: float, limit_s: float, task_id: str) -> None:
        """A call that held the event loop, two times."""
        message = (
            f"a call holds the event loop for {held_s:.2f} s (probe {name}, {task_id}); at most {limit_s:g} s. "
            "Wait with `await`; put long computation into a sandbox or `asyncio.to_thread`"
        )
        self.report.add("blocks", name, message)

    def is_rewarded(self, played: Played) -> bool:
        """As a right answer is, or in part where no success is recorded."""
        reward = played.episode.reward
        return played.episode.success if self.records else reward is not None and reward > self.least

    def _raise_floor(self, result: ProbeResult) -> None:
        if result.reward is not None and result.episodes >= WON_TASKS:
            floor = self.report.floor
            self.report.floor = result.reward if floor is None else max(floor, result.reward)

    def _is_gamed(self, result: ProbeResult, judged: Sequence[Played]) -> bool:
        won = [one for one in judged if one.episode.success]
        chance = self.chance
        place = f"{result.probe} ({result.variant})"
        if len(won) >= WON_TASKS and result.success is not None and result.success > chance + WON_SHARE:
            message = f"{place}: success in {len(won)} of {len(judged)} tasks, reward {result.reward:.3f}"
            self.report.add("gamed", result.probe, message, _said(won[0]))
            return True
        best = self.report.oracle
        if best is None or result.reward is None or best <= self.least or len(judged) < WON_TASKS:
            return False
        share = (result.reward - self.least) / (best - self.least)
        if share <= EARNED_SHARE + chance / 2:
            return False
        message = f"{place} earns {result.reward:.3f} on average, the right answer {best:.3f}"
        self.report.add("gamed", result.probe, message, _said(judged[0]))
        return True

    def faults(self, name: str, variant: str, played: Sequence[Played]) -> bool:
        """Add a finding for each kind of failure; whether there was one."""
        failed = [one for one in played if one.failed]
        for one in failed:
            error = one.episode.error
            assert error is not None
            by_reward = error.source.startswith("reward")
            kind = "crash"
            if by_reward and error.message.startswith("it gave "):
                kind = "out_of_range"
            elif error.kind == "TimeoutError":
                kind = "hang"
            where = error.source if kind != "crash" else f"{error.source} {error.kind}"
            played_by = f"{name} ({variant})" if variant else name
            message = f"{played_by}, task {one.episode.task.task_id}: {error.kind}: {error.message[:300]}"
            self.report.add(kind, where, message, one.trace)
        return bool(failed)

    def _count_unsupported(self, who: str, played: Sequence[Played]) -> None:
        if count := sum(one.unsupported for one in played):
            self.report.notes.append(f"{who}: the sandbox cannot run {count} of {len(played)} answers; not judged")


def _judged(played: Sequence[Played]) -> list[Played]:
    return [one for one in played if not (one.unsupported or one.failed)]


def _result(name: str, variant: str, what: str, judged: Sequence[Played], seconds: float, records: bool) -> ProbeResult:
    rewards = [one.episode.reward for one in judged if one.episode.reward is not None]
    known = records or unrecorded(one.episode.known_success for one in judged) is not None
    return ProbeResult(
        probe=name,
        variant=variant,
        what=what,
        episodes=len(judged),
        reward=fmean(rewards) if rewards else None,
        success=sum(one.episode.known_success is True for one in judged) / max(1, len(judged)) if known else None,
        seconds=seconds,
    )


def _said(one: Played) -> str:
    """The last thing that was said in an episode, in short."""
    said = [message for message in one.episode.messages if message["role"] == "assistant"]
    return f"task {one.episode.task.task_id}: {said[-1]['content'][:120]!r}" if said else ""
