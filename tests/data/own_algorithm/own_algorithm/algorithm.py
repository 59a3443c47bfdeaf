"""What is this package's own: a loss, an advantage, a buffer's policy, and what a response earns."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentgym import Episode
from agentgym.loops.replay_buffer import Entry
from agentgym.rl.advantages import Advantage
from agentgym.rl.losses import Loss, Reduction, TokenLoss, TrainedTokens
from agentgym.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Capped(Loss):
    """The policy gradient, with a ratio to the sampler of at most `cap`."""

    metrics: ClassVar[Mapping[str, Reduction]] = {"own/ratio": "mean"}

    cap: float = 2.0

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        ratio_N = (tokens.logprobs - tokens.sampler_logprobs).detach().exp().clamp(max=self.cap)
        return TokenLoss(loss=-ratio_N * tokens.logprobs * tokens.advantages, metrics={"own/ratio": ratio_N})


@dataclass(frozen=True, slots=True, kw_only=True)
class FromBest(Advantage):
    """How much less than the group's best an episode earned, and as much for all together."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        rewards_G = [float(episode.reward or 0.0) for episode in episodes_G]
        behind_G = [reward - max(rewards_G) for reward in rewards_G]
        return [behind - sum(behind_G) / len(behind_G) for behind in behind_G]


def spread(group: Group) -> float:
    """How far the advantages of a group are apart."""
    advantages = [advantage for _, advantage in group.trained()]
    return max(advantages) - min(advantages)


def widest(entries: Sequence[Entry[Any]], count: int, version: int, rng: random.Random) -> list[int]:
    """The groups from which most can be learned."""
    return sorted(range(len(entries)), key=lambda at: spread(entries[at].item), reverse=True)[:count]


def brevity(prompt: str, response: str, target: str) -> float:
    return 1.0 / (1.0 + len(response))
