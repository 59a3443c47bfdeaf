"""GRPO: the clipped policy gradient, with the ratio against the sampler's own log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentgym.rl.losses.loss import Loss, Reduction, TokenLoss, TrainedTokens
from agentgym.rl.losses.mismatch import METRICS, kl_penalty, log_ratio, mismatch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo(Loss):
    """Group Relative Policy Optimization (arXiv:2402.03300) with the changes that are usual today.

    clip_low, clip_high: the ratio stays in [1 - clip_low, 1 + clip_high] (asymmetric as in DAPO,
    arXiv:2503.14476). kl_coef: weight of the k3 estimate of KL(policy || reference); 0 uses no reference.
    importance_cap: truncated importance weights.

    With p the policy now, m the sampler's policy (which is also the old policy, because a batch is used for
    one optimizer step), A the advantage and sg the stop of the gradient:

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

    k3 estimates KL(p || ref) (J. Schulman, "Approximating KL divergence", 2020).
    """

    metrics: ClassVar[Mapping[str, Reduction]] = {**METRICS, "train/clip_share": "mean"}

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    importance_cap: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.clip_low < 1 or self.clip_high <= 0 or self.kl_coef < 0 or self.importance_cap < 1:
            raise ValueError(
                "allowed are 0 < clip_low < 1, clip_high > 0, kl_coef >= 0, importance_cap >= 1; "
                f"got {self.clip_low}, {self.clip_high}, {self.kl_coef}, {self.importance_cap}"
            )

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        metrics = mismatch(tokens, version)
        surrogate_N, metrics["train/clip_share"] = self._clipped(tokens)
        loss_N = kl_penalty(tokens, self.kl_coef, metrics) - surrogate_N
        return TokenLoss(loss=loss_N, metrics=metrics)

    def _clipped(self, tokens: TrainedTokens) -> tuple[Tensor, Tensor]:
        """The surrogate [N], and 1.0 where the clip has stopped the gradient."""
        advantages_N = tokens.advantages
        now_N = tokens.logprobs.detach()
        weight_N = log_ratio(now_N, tokens.sampler_logprobs).exp().clamp(max=self.importance_cap)
        ratio_N = weight_N * (tokens.logprobs - now_N).exp()
        bounded_N = ratio_N.clamp(1 - self.clip_low, 1 + self.clip_high)
        too_high_N = (advantages_N > 0) & (weight_N > 1 + self.clip_high)
        too_low_N = (advantages_N < 0) & (weight_N < 1 - self.clip_low)
        clipped_N = (too_high_N | too_low_N).float()
        return (ratio_N * advantages_N).minimum(bounded_N * advantages_N), clipped_N
