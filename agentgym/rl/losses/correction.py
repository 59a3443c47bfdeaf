"""Weights of the trainer's old policy against the sampler: engines and staleness make the two differ.

With o the trainer's policy before the batch, m the sampler's and w = o / m of each token, or of the whole sequence
(the product over its trained tokens):

    token, sequence             clamp(w, floor, cap)               truncated importance sampling
    token_mask, sequence_mask   w where floor <= w <= cap, else 0  masked importance sampling

Truncated weights: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training", 2025 (tokens).
Masks: of tokens, IcePop (arXiv:2510.18855); of sequences, Liu et al., "When speed kills stability", 2025.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from agentgym.rl.losses.ratio import LOG_RATIO_LIMIT, sequence_sums

if TYPE_CHECKING:
    from torch import Tensor

Correction: TypeAlias = Literal["none", "token", "sequence", "token_mask", "sequence_mask"]


def correction_weights(
    old_N: Tensor, sampler_N: Tensor, index_N: Tensor, *, kind: Correction, floor: float, cap: float
) -> tuple[Tensor, Tensor]:
    """The weight of each token, without gradient, and 1.0 where w is outside of [floor, cap]. kind: not none."""
    difference_N = (old_N - sampler_N).detach()
    if kind in ("sequence", "sequence_mask"):
        difference_N = sequence_sums(difference_N, index_N)
    weights_N = difference_N.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    outside_N = (weights_N < floor) | (weights_N > cap)
    if kind in ("token", "sequence"):
        return weights_N.clamp(floor, cap), outside_N.to(weights_N.dtype)
    return weights_N.masked_fill(outside_N, 0.0), outside_N.to(weights_N.dtype)
