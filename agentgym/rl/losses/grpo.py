"""GRPO: the clipped policy gradient, with truncated weights for what the clip does not bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.rl.losses.loss import TrainedTokens
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.rl.losses.ratio import clipped, token_ratio, with_gradient

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(PolicyLoss):
    """Group Relative Policy Optimization (arXiv:2402.03300) with the changes that are usual today.

    With p the policy now, m the old policy (the sampler's, unless `old` says otherwise), A the advantage and sg the
    stop of the gradient:

        r    = exp(clamp(log p - log m, -20, 20))
        w    = min(r, importance_cap)
        u    = sg(w) * exp(log p - sg(log p))                 value w, gradient w * grad log p
        loss = -min(u * A, clamp(u, 1 - clip_low, 1 + clip_high) * A) + kl_coef * k3(log ref - log p)

    The first term is PPO's (arXiv:1707.06347) as GRPO uses it (arXiv:2402.03300, eq. 3), with the two bounds
    of DAPO (arXiv:2503.14476). Clipping bounds r from above only where A > 0. Where A < 0 it is the truncated
    importance weight w (Espeholt et al., IMPALA, arXiv:1802.01561, and Yao et al., "Your efficient RL
    framework secretly brings you off-policy RL training", 2025) that bounds it: the value equals that of dual
    clipping with c = importance_cap (arXiv:1912.09729), but the gradient stays, at weight importance_cap, since
    such a token is one that must become rarer. Usually a truncated weight corrects for p_old against m and
    multiplies a ratio p / p_old; here p_old is m, so both are the one ratio p / m and none is applied twice.
    """

    clip_low: float = 0.2
    """The ratio stays above 1 - clip_low."""
    clip_high: float = 0.28
    """The ratio stays below 1 + clip_high; above clip_low, as in DAPO, it lets unlikely tokens grow."""
    importance_cap: float = 2.0
    """The largest importance weight, which bounds a token with a negative advantage."""

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor]:
        weights_N = token_ratio(tokens.logprobs.detach(), old_N).clamp(max=self.importance_cap)
        ratio_N = with_gradient(weights_N, tokens.logprobs)
        return clipped(ratio_N, tokens.advantages, self.clip_low, self.clip_high)
