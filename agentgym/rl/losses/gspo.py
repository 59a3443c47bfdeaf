"""GSPO: the ratio of whole sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.rl.losses.loss import Aggregation, TrainedTokens
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.rl.losses.ratio import LOG_RATIO_LIMIT, clipped, sequence_means, with_gradient

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Gspo(PolicyLoss):
    """Group Sequence Policy Optimization (arXiv:2507.18071, eq. 5 and 7; as GSPO-token, eq. 13 and 14).

        s_i  = exp(mean_t (log p_t - log p_old,t))            over the trained tokens of sequence i
        u_it = sg(s_i) * p_t / sg(p_t)
        loss = -min(u_it A_it, clamp(u_it, 1 - clip_low, 1 + clip_high) A_it)

    All tokens of a sequence have one ratio and are clipped together or not at all. Where they share one advantage, the
    gradient is that of GSPO itself; GSPO-token also takes advantages of turns. The bounds are small because s_i, a
    geometric mean, is close to 1.
    """

    aggregation: Aggregation = "sequence_mean"
    clip_low: float = 3e-4
    """The ratio of a sequence stays above 1 - clip_low; it is small because the ratio is a geometric mean."""
    clip_high: float = 4e-4
    """The ratio of a sequence stays below 1 + clip_high."""

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor]:
        means_N = sequence_means(tokens.logprobs.detach() - old_N, tokens.sample_index)
        ratio_N = with_gradient(means_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp(), tokens.logprobs)
        return clipped(ratio_N, tokens.advantages, self.clip_low, self.clip_high)
