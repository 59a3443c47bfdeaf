"""SAPO: a smooth gate instead of a clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.rl.losses.loss import Aggregation, TrainedTokens
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.rl.losses.ratio import token_ratio

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sapo(PolicyLoss):
    """Soft Adaptive Policy Optimization (arXiv:2511.20347), with r = p / p_old and the logistic function:

        loss = -(4 / T) * logistic(T (r - 1)) * A,  T = temperature_positive where A > 0, else temperature_negative

    The gradient's weight 4 g (1 - g) r, with g the gate, is 1 at r = 1 and falls smoothly to both sides, the quicker
    the higher T is; negative advantages, whose gradients spread over the whole vocabulary, get the higher one.
    """

    aggregation: Aggregation = "sequence_mean"
    temperature_positive: float = 1.0
    """How quickly the gate closes for tokens with a positive advantage; higher is quicker."""
    temperature_negative: float = 1.05
    """The same for tokens with a negative advantage, for which the paper takes more."""

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, None]:
        advantages_N, ratio_N = tokens.advantages, token_ratio(tokens.logprobs, old_N)
        temperature_N = ratio_N.detach().new_full(ratio_N.shape, self.temperature_negative)
        temperature_N = temperature_N.masked_fill(advantages_N > 0, self.temperature_positive)
        return 4 / temperature_N * (temperature_N * (ratio_N - 1)).sigmoid() * advantages_N, None
