"""Cross-entropy: the loss of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from agentgym.rl.losses.loss import Loss, Reduction, TokenLoss, TrainedTokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy(Loss):
    """-log p of each trained token, in nats."""

    metrics: ClassVar[Mapping[str, Reduction]] = {"train/entropy": "mean"}

    @property
    def has_sampler(self) -> bool:
        return False

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        return TokenLoss(loss=-tokens.logprobs, metrics={"train/entropy": tokens.entropy.detach()})
