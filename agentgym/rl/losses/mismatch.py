"""How far the trainer's log-probabilities are from those the sampler reported."""

from __future__ import annotations

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) is 5e8: beyond it a float32 sum would be lost


def log_ratio(new_N: Tensor, old_N: Tensor) -> Tensor:
    """log(new / old), kept in [-20, 20] so that one broken token can't make a batch infinite."""
    return (new_N - old_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def k3(log_ratio_N: Tensor) -> Tensor:
    """KL(p || q) estimated on tokens of p: q/p - 1 - log(q/p), never negative, unbiased.

    log_ratio_N: log(q / p). Source: J. Schulman, "Approximating KL divergence", 2020.
    """
    return log_ratio_N.exp() - 1.0 - log_ratio_N


@torch.no_grad()
def mismatch(
    logprobs_N: Tensor, sampler_N: Tensor, versions_N: Tensor, version: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Metrics by mean and by maximum.

    version: the newest published weights. Tokens sampled by them ("fresh") must agree up to rounding when
    the trainer has not stepped since; the others differ by what training did.
    """
    ratio_N = log_ratio(logprobs_N, sampler_N)
    distance_N = (logprobs_N - sampler_N).abs()
    means = {
        "train/ratio_mean": ratio_N.exp(),
        "train/mismatch_kl": k3(ratio_N),
        "train/mismatch_abs_mean": distance_N,
    }
    maxima: dict[str, Tensor] = {}
    if len(distance_N):
        maxima["train/mismatch_max"] = distance_N.max()
    fresh_N = distance_N[versions_N == version]
    if len(fresh_N):
        maxima["train/mismatch_fresh_max"] = fresh_N.max()
    return means, maxima
