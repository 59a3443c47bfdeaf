"""Plays one task several times, so that its episodes can be compared; ends a run in which too many break."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from agentgym.errors import InfraError
from agentgym.rollout.agent_faults import agent_faults, never_asked
from agentgym.rollout.episode import EpisodePlayer, derive_seed
from agentgym.types import COUNTED_APART, Episode, Group, Outcome, Task


async def play_group(player: EpisodePlayer, task: Task, *, group_id: int, size: int, run_seed: int) -> Group:
    """`size` episodes of one task at the same time; their seeds follow from run, group and index."""
    group = Group(group_id=group_id, task=task, start_version=player.generator.version)
    async with asyncio.TaskGroup() as tasks:
        playing = [
            tasks.create_task(
                player.play(
                    task, episode_id=f"g{group_id:06d}-e{index:02d}", seed=derive_seed(run_seed, group_id, index)
                )
            )
            for index in range(size)
        ]
    group.episodes = [play.result() for play in playing]
    await player.scorer.score_group(group.episodes)
    return group


class InfraMonitor:
    """Watches the share of episodes that were lost to broken infrastructure."""

    def __init__(self, max_share: float, window: int = 200, at_least: int = 40) -> None:
        self._max_share = max_share
        self._recent: deque[Episode | None] = deque(maxlen=window)  # None: one that nothing broke, with all its tokens
        self._at_least = at_least
        self.total = 0
        self._over: InfraError | None = None

    def add(self, episode: Episode) -> None:
        """Raises InfraError with a report of the causes when the share is over its limit.

        Also where an agent's program fails each time before it asks the policy for anything.
        """
        if self._over is not None:
            raise self._over  # other groups that end meanwhile say the same, not more
        self._recent.append(episode if _is_broken(episode) or never_asked(episode) else None)
        if len(self._recent) >= self._at_least:
            unasked = [one for one in self._recent if one is not None and never_asked(one)]
            if len(unasked) == len(self._recent):
                self._over = InfraError(f"the policy was never asked: {agent_faults(unasked)}")
                raise self._over
        if not _is_broken(episode):
            return
        self.total += 1
        broken = [one for one in self._recent if one is not None and _is_broken(one)]
        share = len(broken) / len(self._recent)
        if len(self._recent) >= self._at_least and share > self._max_share:
            self._over = InfraError(self._report(broken, share))
            raise self._over

    def _report(self, broken: list[Episode], share: float) -> str:
        causes = Counter(f"{e.error.source}: {e.error.kind}" for e in broken if e.error is not None)
        lines = [f"  {count:4d} x {cause}" for cause, count in causes.most_common(5)]
        last = broken[-1].error
        detail = f"\nthe last one: {last.message}" if last is not None else ""
        return (
            f"{share:.0%} of the last {len(self._recent)} episodes were lost to infrastructure errors; "
            f"rollout.max_infra_error_share allows {self._max_share:.0%}.\n" + "\n".join(lines) + detail
        )


def _is_broken(episode: Episode) -> bool:
    apart = episode.error is not None and episode.error.kind in COUNTED_APART
    return episode.outcome is Outcome.INFRA_ERROR and not apart
