"""Measures a policy: plays held-out tasks with fixed seeds and counts successes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgym.errors import InfraError
from agentgym.evals.statistics import success_interval
from agentgym.rollout.episode import EpisodePlayer, derive_seed
from agentgym.types import COUNTED_APART, Episode, Outcome, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """success: share of counted episodes; [low, high]: its 95% interval. by_task: successes of each task,
    None for an episode that could not be counted. sandbox: what ran the code, where some was run, and its
    metrics at the end."""

    checkpoint: str
    success: float
    low: float
    high: float
    reward_mean: float
    num_tasks: int
    num_episodes: int
    num_unsupported: int
    num_too_long: int  # prompts that left no token of rollout.max_episode_tokens
    num_infra_errors: int
    by_task: tuple[tuple[bool | None, ...], ...]
    sandbox: str = ""
    sandbox_metrics: dict[str, float] = field(default_factory=dict)


async def play_eval(
    player: EpisodePlayer, tasks: Sequence[Task], *, samples_per_task: int, seed: int
) -> list[list[Episode]]:
    """One row of episodes for each task.

    The same tasks and seed give the same prompts and sampling seeds, whatever the policy.
    """
    async with asyncio.TaskGroup() as playing:
        plays = [
            [
                playing.create_task(
                    player.play(
                        task,
                        episode_id=f"eval-{number:04d}-{sample:02d}",
                        seed=derive_seed("eval", seed, number, sample),
                    )
                )
                for sample in range(samples_per_task)
            ]
            for number, task in enumerate(tasks)
        ]
    return [[play.result() for play in row] for row in plays]


def summarize(episodes: Sequence[Sequence[Episode]], checkpoint: str) -> EvalResult:
    """Count successes. Infrastructure errors, unsupported code and prompts that are too long are left out, and
    counted separately.

    Raises InfraError when nothing could be counted.
    """
    by_task = tuple(tuple(_counted(episode) for episode in row) for row in episodes)
    flat = [episode for row in episodes for episode in row]
    known = [value for row in by_task for value in row if value is not None]
    if not known:
        first = next((e.error for e in flat if e.error is not None), None)
        raise InfraError(f"none of {len(flat)} episodes could be counted; the first error: {first}")
    low, high = success_interval(by_task)
    rewards = [e.reward for e in flat if e.reward is not None and e.outcome is not Outcome.INFRA_ERROR]
    kinds = [e.error.kind for e in flat if e.error is not None]
    unsupported, too_long = (kinds.count(kind) for kind in COUNTED_APART)
    return EvalResult(
        checkpoint=checkpoint,
        success=sum(known) / len(known),
        low=low,
        high=high,
        reward_mean=sum(rewards) / len(rewards),
        num_tasks=len(by_task),
        num_episodes=len(known),
        num_unsupported=unsupported,
        num_too_long=too_long,
        num_infra_errors=len(flat) - len(known) - unsupported - too_long,
        by_task=by_task,
    )


def _counted(episode: Episode) -> bool | None:
    return None if episode.outcome is Outcome.INFRA_ERROR else episode.success
