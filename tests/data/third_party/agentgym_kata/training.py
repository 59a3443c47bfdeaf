"""A loss with a metric and a maximum of its own, and an advantage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym import Episode
from agentgym.rl.advantages import Advantage
from agentgym.rl.losses import Loss, Reduction, TokenLoss, TrainedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled(Loss):
    """The policy gradient, and a pull towards what the sampler's weights gave."""

    metrics: ClassVar[Mapping[str, Reduction]] = {"kata/pull": "mean", "kata/pull_max": "max"}

    strength: float = 0.1

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        pull_N = (tokens.logprobs - tokens.sampler_logprobs).square()
        metrics = {"kata/pull": pull_N.detach(), "kata/pull_max": pull_N.detach().sqrt()}
        return TokenLoss(loss=self.strength * pull_N - tokens.logprobs * tokens.advantages, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs(Advantage):
    """+1 above the mean of the group, -1 below it, 0 for what is nearer than `margin`."""

    margin: float = 0.01

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        rewards_G = [float(episode.reward or 0.0) for episode in episodes_G]
        mean = sum(rewards_G) / max(1, len(rewards_G))
        return [0.0 if abs(reward - mean) < self.margin else 1.0 if reward > mean else -1.0 for reward in rewards_G]
