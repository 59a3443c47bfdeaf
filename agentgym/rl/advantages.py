"""How much better an episode was than the others of its group."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from agentgym.types import Episode, Group, Outcome

_EPSILON = 1e-6  # added to a standard deviation
_ROUNDING = 1e-12  # rewards that differ by less of the largest one are equal: sums in floats end like that


class Advantage(ABC):
    """Inherit it as a frozen dataclass: the fields are the advantage's settings in a recipe."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        """One number for each episode of a group. All of them have a reward.

        A group whose numbers are all 0.0 has no signal and is skipped. In one that is trained an episode with 0.0
        counts as any other in the means and in the KL term.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOnly(Advantage):
    """r - mean (Dr. GRPO, arXiv:2503.20783, eq. 3)."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        return centred_rewards(episodes_G)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StdNormalized(Advantage):
    """(r - mean) / std over the group (GRPO, arXiv:2402.03300, sec. 4.1.2)."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        centred_G, std = centred_rewards(episodes_G)
        return [value / (std + _EPSILON) for value in centred_G]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(Advantage):
    """r minus the mean of the others (arXiv:2402.14740, eq. 8)."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        count = len(episodes_G)
        return [value * count / max(1, count - 1) for value in centred_rewards(episodes_G)[0]]


def centred_rewards(episodes_G: Sequence[Episode]) -> tuple[list[float], float]:
    """Rewards minus their mean, and their standard deviation.

    Exactly 0.0 where a reward equals the mean, and so everywhere when all rewards are equal; "equal" is up to the
    rounding of floats.
    """
    rewards_G = [episode.reward for episode in episodes_G if episode.reward is not None]
    assert len(rewards_G) == len(episodes_G), "a scored episode has a reward"
    count = max(1, len(rewards_G))
    mean = math.fsum(rewards_G) / count
    nothing = _ROUNDING * max(map(abs, rewards_G), default=0.0)
    centred_G = [reward - mean if abs(reward - mean) > nothing else 0.0 for reward in rewards_G]
    return centred_G, math.sqrt(math.fsum(value * value for value in centred_G) / count)


def assign_advantages(group: Group, advantage: Advantage) -> None:
    """Fill `group.advantages`. Episodes that broken infrastructure cost get None and touch no other's."""
    counts_G = [episode.outcome in (Outcome.SCORED, Outcome.INVALID) for episode in group.episodes]
    counted = list(compress(group.episodes, counts_G))
    values = advantage(counted)
    if len(values) != len(counted) or not all(map(math.isfinite, values)):
        raise ValueError(
            f"{type(advantage).__name__} gave the advantages {values} for {len(counted)} episodes; "
            "give one finite number for each"
        )
    remaining = iter(values)
    group.advantages = [next(remaining) if counts else None for counts in counts_G]
