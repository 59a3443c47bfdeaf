"""CISPO: bounded importance weights, and a gradient for every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.rl.losses.loss import TrainedTokens
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.rl.losses.ratio import token_ratio

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo(PolicyLoss):
    """Clipped importance-sampling weights (MiniMax-M1, arXiv:2506.13585), with r = p / p_old:

        loss = -sg(clamp(r, importance_floor, importance_cap)) * A * log p

    The weight is bounded and not the update, so no token loses its gradient, however far its ratio is.
    """

    importance_floor: float = 0.0
    """The least weight, the paper's 1 - eps_low; it sets no lower bound."""
    importance_cap: float = 5.0
    """The largest weight, the paper's 1 + eps_high."""

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, None]:
        weights_N = token_ratio(tokens.logprobs.detach(), old_N).clamp(self.importance_floor, self.importance_cap)
        return weights_N * tokens.advantages * tokens.logprobs, None
