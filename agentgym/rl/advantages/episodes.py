"""One number for an episode: its reward against those of its group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.rl.advantages.advantage import EPSILON, ROUNDING, Advantage, centred_rewards, reward_of
from agentgym.types import Episode


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
        return [value / (std + EPSILON) for value in centred_G]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(Advantage):
    """r minus the mean of the others (arXiv:2402.14740, eq. 8)."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        count = len(episodes_G)
        return [value * count / max(1, count - 1) for value in centred_rewards(episodes_G)[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opo(Advantage):
    """r - b with the baseline of least variance, b = sum_i l_i r_i / sum_i l_i (OPO, arXiv:2505.23585).

    l_i: trained tokens of episode i, which stand for the squared norm of its gradient. With episodes of equal length it
    is `mean_only`. The paper samples from the newest weights alone: take loop.max_staleness 0 with it.
    """

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        rewards_G = [reward_of(episode) for episode in episodes_G]
        lengths_G = [episode.num_trained_tokens for episode in episodes_G]
        if not any(lengths_G) or not any(centred_rewards(episodes_G)[0]):
            return [0.0] * len(rewards_G)
        baseline = math.fsum(r * length for r, length in zip(rewards_G, lengths_G, strict=True)) / sum(lengths_G)
        nothing = ROUNDING * max(map(abs, rewards_G))
        return [reward - baseline if abs(reward - baseline) > nothing else 0.0 for reward in rewards_G]
