"""One number for an episode: its reward against those of its group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.rl.advantages.advantage import EPSILON, Advantage, centred_rewards
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
