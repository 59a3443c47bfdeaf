"""GRPO: the clipped policy gradient, with the ratio against the sampler's own log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.rl.config import GrpoConfig
from agentgym.rl.losses.mismatch import k3, log_ratio, mismatch
from agentgym.rl.losses.tokens import TokenLoss, TrainedTokens


def grpo(tokens: TrainedTokens, config: GrpoConfig, version: int) -> TokenLoss:
    """Loss of each trained token.

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
    correction "none" takes r = exp(log p - sg(log p)) = 1: no clip, no weight, m unused.
    """
    if config.correction == "sampler":
        surrogate_N, clipped_N = _clipped(tokens, config)
    else:
        surrogate_N = (tokens.logprobs - tokens.logprobs.detach()).exp() * tokens.advantages
        clipped_N = torch.zeros_like(tokens.advantages)
    means, maxima = mismatch(tokens.logprobs, tokens.sampler_logprobs, tokens.versions, version)
    means["train/clip_share"] = clipped_N
    means["train/entropy"] = tokens.entropy.detach()
    loss_N = -surrogate_N
    if config.kl_coef > 0:
        kl_N = k3(log_ratio(tokens.ref_logprobs, tokens.logprobs))
        means["train/kl_ref"] = kl_N.detach()
        loss_N = loss_N + config.kl_coef * kl_N
    return TokenLoss(loss=loss_N, means=means, maxima=maxima)


def _clipped(tokens: TrainedTokens, config: GrpoConfig) -> tuple[Tensor, Tensor]:
    """The surrogate [N], and 1.0 where the clip has stopped the gradient."""
    advantages_N = tokens.advantages
    now_N = tokens.logprobs.detach()
    weight_N = log_ratio(now_N, tokens.sampler_logprobs).exp().clamp(max=config.importance_cap)
    ratio_N = weight_N * (tokens.logprobs - now_N).exp()
    bounded_N = ratio_N.clamp(1 - config.clip_low, 1 + config.clip_high)
    too_high_N = (advantages_N > 0) & (weight_N > 1 + config.clip_high)
    too_low_N = (advantages_N < 0) & (weight_N < 1 - config.clip_low)
    return torch.minimum(ratio_N * advantages_N, bounded_N * advantages_N), (too_high_N | too_low_N).float()
