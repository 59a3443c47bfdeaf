"""DPPO: tokens whose probability has moved too far are masked, by a divergence instead of a ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.rl.losses.loss import TrainedTokens
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.rl.losses.ratio import token_ratio, with_gradient

if TYPE_CHECKING:
    from torch import Tensor

_LEAST = 1e-8  # probability of all other tokens: beyond it a float32 logarithm would be infinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Dppo(PolicyLoss):
    """Divergence Proximal Policy Optimization (arXiv:2602.04879), with p the policy now and q the old one:

        D    = |p - q|                                                      divergence: tv
        D    = q log(q / p) + (1 - q) log((1 - q) / (1 - p))                divergence: kl
        M    = 0 where D > threshold and (A > 0 and p > q, or A < 0 and p < q), else 1
        loss = -M * sg(min(p / q, importance_cap)) * A * log p

    D is the divergence of "this token or another one" between the two policies. A rare token may so become a few times
    likelier, which a clipped ratio forbids, and a likely one may not lose half of the probability, which it allows.
    """

    divergence: Literal["tv", "kl"] = "tv"
    """The divergence of "this token or another one" between the two policies: total variation or KL."""
    threshold: float = 0.15
    """The divergence beyond which a token that moves further away is masked."""
    importance_cap: float = 20.0
    """The largest importance weight."""

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor]:
        now_N, advantages_N = tokens.logprobs.detach(), tokens.advantages
        p_N, q_N = now_N.exp(), old_N.exp()
        if self.divergence == "tv":
            distance_N = (p_N - q_N).abs()
        else:
            others_N = ((1 - q_N).clamp(min=_LEAST) / (1 - p_N).clamp(min=_LEAST)).log()
            distance_N = q_N * (old_N - now_N) + (1 - q_N) * others_N
        away_N = ((advantages_N > 0) & (p_N > q_N)) | ((advantages_N < 0) & (p_N < q_N))
        masked_N = away_N & (distance_N > self.threshold)
        weights_N = token_ratio(now_N, old_N).clamp(max=self.importance_cap)
        surrogate_N = with_gradient(weights_N, tokens.logprobs) * advantages_N
        return surrogate_N.masked_fill(masked_N, 0.0), masked_N.to(p_N.dtype)
