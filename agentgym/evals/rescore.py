"""Scores saved episodes again with other rewards, and says what a training run would have seen of it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from agentgym.errors import InfraError, UserError
from agentgym.evals.play import EvalResult
from agentgym.evals.play import summarize as summarize_eval
from agentgym.rollout.scoring import Scorer
from agentgym.runs.records import SavedEpisode
from agentgym.types import Episode, Outcome

_ROUNDING = 1e-9  # rewards that differ by less are equal: sums in floats end like that
AT_A_TIME = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """One saved episode before and after."""

    saved: SavedEpisode
    after: Episode

    @property
    def change(self) -> float:
        """The change of the reward; 0.0 if either is missing."""
        before, after = self.saved.episode.reward, self.after.reward
        return 0.0 if before is None or after is None else after - before


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What changed. Means are over the episodes that both counted; None where there are none.

    num_changed: of their rewards. num_lost: scored before, and not now; num_regained: the reverse. groups: those whose
    episodes were played together; with_signal: how many of them have rewards that differ, before and after.
    num_pairs: pairs of episodes of one group that both order; num_reversed: how many of them in opposite ways.
    """

    num_episodes: int
    num_changed: int
    num_lost: int
    num_regained: int
    mean_before: float | None
    mean_after: float | None
    num_groups: int
    with_signal_before: int
    with_signal_after: int
    num_pairs: int
    num_reversed: int


async def rescore(
    saved: Sequence[SavedEpisode],
    scorer: Scorer,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    evaluation: bool = False,
) -> list[Rescored]:
    """All episodes that were scored, broke the rules or were lost to a reward, in their order.

    Others that infrastructure broke are left out: they never ended. progress: episodes done, of how many.
    evaluation: they are of one, where rewards of groups are not scored.
    """
    chosen = [one for one in saved if _can_be_scored(one.episode)]
    afters = [_unscored(one.episode) for one in chosen]
    free, done = asyncio.Semaphore(AT_A_TIME), 0

    async def score(episode: Episode) -> None:
        nonlocal done
        async with free:
            if episode.outcome is Outcome.INVALID:
                episode.reward = scorer.floor
            else:
                await scorer.score(episode)
                if episode.outcome is None and episode.reward is not None:
                    episode.outcome = Outcome.SCORED
        done += 1
        progress(done, len(chosen))

    async with asyncio.TaskGroup() as tasks:
        for episode in afters:
            tasks.create_task(score(episode))
    scored = [Rescored(saved=one, after=after) for one, after in zip(chosen, afters, strict=True)]
    for group in [] if evaluation else _groups(scored):
        await scorer.score_group([one.after for one in group])
    return scored


def as_evaluation(
    saved: Sequence[SavedEpisode], scored: Sequence[Rescored], before: EvalResult
) -> tuple[list[list[Episode]], EvalResult]:
    """The evaluation that the episodes make as they are scored now: one row for each task, and its result.

    Success is what it was where the new rewards say nothing of it. before: the result of what was saved. Raises
    UserError where nothing could be scored.
    """
    after = {id(one.saved): one.after for one in scored}
    rows: dict[int, list[Episode]] = {}
    for one in sorted(saved, key=lambda one: (one.group_id, one.index)):
        rows.setdefault(one.group_id, []).append(after.get(id(one), one.episode))
    for made in scored:
        said = made.saved.episode.known_success
        if made.after.known_success is None and said is not None:
            made.after.info = {**made.after.info, "success": said}
    try:
        result = summarize_eval([*rows.values()], before.checkpoint)
    except InfraError as error:
        raise UserError(f"these rewards score none of the episodes: {error}") from None
    kept = {"sandbox", "sandbox_metrics", "usage", "currency"}
    return [*rows.values()], dataclasses.replace(result, **{name: getattr(before, name) for name in kept})


def summarize(scored: Sequence[Rescored]) -> Summary:
    before = [one.saved.episode.reward for one in scored]
    after = [one.after.reward for one in scored]
    both = [(b, a) for b, a in zip(before, after, strict=True) if b is not None and a is not None]
    groups = [group for group in _groups(scored) if len(group) > 1]
    pairs = [pair for group in groups for pair in combinations(group, 2)]
    orders = [_order(first.saved.episode, second.saved.episode) * _order(first.after, second.after)
              for first, second in pairs]  # fmt: skip
    return Summary(
        num_episodes=len(scored),
        num_changed=sum(abs(a - b) > _ROUNDING for b, a in both),
        num_lost=sum(b is not None and a is None for b, a in zip(before, after, strict=True)),
        num_regained=sum(b is None and a is not None for b, a in zip(before, after, strict=True)),
        mean_before=math.fsum(b for b, _ in both) / len(both) if both else None,
        mean_after=math.fsum(a for _, a in both) / len(both) if both else None,
        num_groups=len(groups),
        with_signal_before=sum(_differ(one.saved.episode.reward for one in group) for group in groups),
        with_signal_after=sum(_differ(one.after.reward for one in group) for group in groups),
        num_pairs=sum(order != 0 for order in orders),
        num_reversed=sum(order < 0 for order in orders),
    )


def _can_be_scored(episode: Episode) -> bool:
    if episode.outcome is not Outcome.INFRA_ERROR:
        return True
    return episode.error is not None and episode.error.source.startswith("reward")


def _unscored(episode: Episode) -> Episode:
    outcome = Outcome.INVALID if episode.outcome is Outcome.INVALID else None
    return dataclasses.replace(
        episode,
        rewards={},
        turn_rewards=[],
        reward=None,
        outcome=outcome,
        error=None,
        turn_advantages=[],
        token_advantages=[],
    )


def _groups(scored: Iterable[Rescored]) -> list[list[Rescored]]:
    groups: dict[tuple[int, int], list[Rescored]] = {}
    for one in scored:
        groups.setdefault((one.saved.step, one.saved.group_id), []).append(one)
    return list(groups.values())


def _order(first: Episode, second: Episode) -> int:
    if first.reward is None or second.reward is None or abs(first.reward - second.reward) <= _ROUNDING:
        return 0
    return 1 if first.reward > second.reward else -1


def _differ(rewards: Iterable[float | None]) -> bool:
    known = [reward for reward in rewards if reward is not None]
    return bool(known) and max(known) - min(known) > _ROUNDING
