"""What every loss reads and gives: the trained tokens of a batch, one entry for each.

Axis: N trained tokens. Tokens that are masked never get here, so no loss can see them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTokens:
    """All [N]. logprobs carries the gradient; weights sum to the loss's normalisation over the whole batch."""

    logprobs: Tensor
    entropy: Tensor
    sampler_logprobs: Tensor
    ref_logprobs: Tensor
    advantages: Tensor
    versions: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """loss: [N], to be multiplied with the weights and summed.

    means: [N] without gradient, metrics whose mean over all trained tokens is reported.
    maxima: scalars, metrics whose maximum is reported.
    """

    loss: Tensor
    means: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)
