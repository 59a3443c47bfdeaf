"""How far the trainer's log-probabilities are from those of the sampler, and of the reference model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentgym.rl.losses.loss import Reduction, TrainedTokens

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) is 5e8: beyond it a float32 sum would be lost
METRICS: Mapping[str, Reduction] = {
    "train/ratio_mean": "mean",
    "train/mismatch_kl": "mean",
    "train/mismatch_abs_mean": "mean",
    "train/mismatch_max": "max",
    "train/mismatch_fresh_max": "max",
    "train/entropy": "mean",
    "train/kl_ref": "mean",
}


def log_ratio(new_N: Tensor, old_N: Tensor) -> Tensor:
    """log(new / old), kept in [-20, 20] so that one broken token can't make a batch infinite."""
    return (new_N - old_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k3(log_ratio_N: Tensor) -> Tensor:
    """KL(p || q) estimated on tokens of p: q/p - 1 - log(q/p), never negative, unbiased.

    log_ratio_N: log(q / p). Source: J. Schulman, "Approximating KL divergence", 2020.
    """
    return log_ratio_N.exp() - 1.0 - log_ratio_N


def mismatch(tokens: TrainedTokens, version: int) -> dict[str, Tensor]:
    """Metrics of trainer against sampler, and the policy's entropy.

    version: the newest published weights. Tokens sampled by them ("fresh") must agree up to rounding when
    the trainer has not stepped since; the others differ by what training did.
    """
    now_N = tokens.logprobs.detach()
    ratio_N = log_ratio(now_N, tokens.sampler_logprobs)
    distance_N = (now_N - tokens.sampler_logprobs).abs()
    return {
        "train/ratio_mean": ratio_N.exp(),
        "train/mismatch_kl": k3(ratio_N),
        "train/mismatch_abs_mean": distance_N,
        "train/mismatch_max": distance_N,
        "train/mismatch_fresh_max": distance_N[tokens.versions == version],
        "train/entropy": tokens.entropy.detach(),
    }


def kl_penalty(tokens: TrainedTokens, kl_coef: float, metrics: dict[str, Tensor]) -> Tensor | float:
    """kl_coef * k3(KL(policy || reference)) for each token, with its metric; 0.0 for a kl_coef of 0."""
    if kl_coef <= 0:
        return 0.0
    kl_N = k3(log_ratio(tokens.ref_logprobs, tokens.logprobs))
    metrics["train/kl_ref"] = kl_N.detach()
    return kl_coef * kl_N
