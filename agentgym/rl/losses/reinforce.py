"""REINFORCE: the policy gradient as it is, without the sampler's log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentgym.rl.losses.loss import Loss, Reduction, TokenLoss, TrainedTokens
from agentgym.rl.losses.mismatch import METRICS, kl_penalty, mismatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce(Loss):
    """-A * grad log p of each trained token (Williams, 1992), as if the newest weights had sampled it.

    On stale samples it is wrong: there GRPO without its importance ratio, which shows what that ratio is for.
    kl_coef: weight of the k3 estimate of KL(policy || reference); 0 uses no reference.
    """

    metrics: ClassVar[Mapping[str, Reduction]] = METRICS

    kl_coef: float = 0.0

    def __post_init__(self) -> None:
        if self.kl_coef < 0:
            raise ValueError(f"kl_coef is {self.kl_coef}; allowed is 0 or more")

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        """The value is -A: the ratio p / sg(p), which is 1, only carries the gradient."""
        metrics = mismatch(tokens, version)
        ratio_N = (tokens.logprobs - tokens.logprobs.detach()).exp()
        loss_N = kl_penalty(tokens, self.kl_coef, metrics) - ratio_N * tokens.advantages
        return TokenLoss(loss=loss_N, metrics=metrics)
