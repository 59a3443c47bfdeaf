"""How far the trainer's log-probabilities are from those of the sampler, and of the reference model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentgym.rl.losses.kl import k3
from agentgym.rl.losses.loss import Reduction, TrainedTokens
from agentgym.rl.losses.ratio import log_ratio

if TYPE_CHECKING:
    from torch import Tensor

METRICS: Mapping[str, Reduction] = {
    "train/ratio_mean": "mean",
    "train/mismatch_kl": "mean",
    "train/mismatch_abs_mean": "mean",
    "train/mismatch_max": "max",
    "train/mismatch_fresh_max": "max",
    "train/entropy": "mean",
    "train/kl_ref": "mean",
}


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
        "train/mismatch_fresh_max": distance_N.masked_fill(tokens.versions != version, -math.inf),
        "train/entropy": tokens.entropy.detach(),
    }
