"""PPO's surrogate against the trainer's own old policy, times a weight of that policy against the sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.rl.losses.correction import Correction
from agentgym.rl.losses.loss import TrainedTokens
from agentgym.rl.losses.policy import Old, PolicyLoss
from agentgym.rl.losses.ratio import clipped, token_ratio

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tis(PolicyLoss):
    """Truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings you off-policy RL
    training", 2025), with o the trainer's old policy and m the sampler's, of each token:

        loss = -min(o / m, correction_cap) * min(r A, clamp(r, 1 - clip_low, 1 + clip_high) A),  r = p / o
    """

    old: Old = "trainer"
    correction: Correction = "token"
    clip_low: float = 0.2
    clip_high: float = 0.28

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor]:
        return clipped(token_ratio(tokens.logprobs, old_N), tokens.advantages, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mis(PolicyLoss):
    """Masked importance sampling of whole sequences (Liu et al., "When speed kills stability", 2025).

        W    = prod_t o_t / m_t                                            over the trained tokens of the sequence
        loss = -W 1[correction_floor <= W <= correction_cap] * min(r A, clamp(r, 1 - clip_low, 1 + clip_high) A)

    A sequence that the trainer finds too much likelier than the sampler did is left out whole.
    """

    old: Old = "trainer"
    correction: Correction = "sequence_mask"
    clip_low: float = 0.2
    clip_high: float = 0.28

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor]:
        return clipped(token_ratio(tokens.logprobs, old_N), tokens.advantages, self.clip_low, self.clip_high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoupled(PolicyLoss):
    """Decoupled PPO (arXiv:2110.00641; for language models AReaL, arXiv:2505.24298).

        loss = -(o / m) * min(r A, clamp(r, 1 - clip_low, 1 + clip_high) A),  r = p / o

    The policy o that bounds the update is not the one that sampled: it is the trainer's before the batch, so stale
    samples take nothing of the room that the clip leaves. It takes trainer.minibatches or trainer.epochs above 1: with
    one update a batch r is 1, and what is left is a plain importance weight.
    """

    old: Old = "trainer"
    correction: Correction = "token"
    correction_cap: float = 1e9  # none: a weight is at most exp(20)
    clip_low: float = 0.2
    clip_high: float = 0.2

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor]:
        return clipped(token_ratio(tokens.logprobs, old_N), tokens.advantages, self.clip_low, self.clip_high)
