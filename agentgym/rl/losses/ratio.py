"""Ratios of two policies' probabilities: of a token, of a sequence, and what a clip leaves of them.

Axis: N trained tokens; those of a sample are in order and together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) is 5e8: beyond it a float32 sum would be lost


def log_ratio(new_N: Tensor, old_N: Tensor) -> Tensor:
    """log(new / old), kept in [-20, 20] so that one broken token can't make a batch infinite."""
    return (new_N - old_N).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def token_ratio(new_N: Tensor, old_N: Tensor) -> Tensor:
    """new / old of each token; the gradient flows through both as they carry one."""
    return log_ratio(new_N, old_N).exp()


def with_gradient(weights_N: Tensor, logprobs_N: Tensor) -> Tensor:
    """Values of weights_N with the gradient weights_N * grad log p."""
    return weights_N.detach() * (logprobs_N - logprobs_N.detach()).exp()


def sequence_sums(values_N: Tensor, index_N: Tensor) -> Tensor:
    """Gives each token the sum over the tokens of its sample. Nothing waits for the device."""
    if not len(values_N):
        return values_N
    number_N = _begins(index_N).cumsum(0) - 1  # of the sample among those that have a token
    return values_N.new_zeros(len(values_N)).index_add(0, number_N, values_N)[number_N]


def sequence_means(values_N: Tensor, index_N: Tensor) -> Tensor:
    """Gives each token the mean over the tokens of its sample."""
    return sequence_sums(values_N, index_N) / sequence_sums(values_N.new_ones(len(values_N)), index_N)


def sums_to_go(values_N: Tensor, index_N: Tensor) -> Tensor:
    """Gives each token the sum over itself and the later tokens of its sample, computed in float64."""
    exact_N = values_N.double()
    before_N = exact_N.cumsum(0) - exact_N
    place_N = index_N.new_ones(len(index_N)).cumsum(0) - 1
    first_N = (place_N * _begins(index_N)).cummax(0).values
    return (sequence_sums(exact_N, index_N) - (before_N - before_N[first_N])).to(values_N.dtype)


def _begins(index_N: Tensor) -> Tensor:
    """Whether a token is the first of its sample, [N]."""
    first_N = index_N.new_ones(len(index_N)).bool()
    first_N[1:] = index_N[1:] != index_N[:-1]
    return first_N


def clipped(ratio_N: Tensor, advantages_N: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """min(r A, clamp(r, 1 - low, 1 + high) A), and 1.0 where the clip has stopped the gradient.

    Source: PPO, arXiv:1707.06347, eq. 7; two bounds as in DAPO, arXiv:2503.14476, eq. 10.
    """
    bounded_N = ratio_N.clamp(1 - low, 1 + high)
    too_high_N = (advantages_N > 0) & (ratio_N > 1 + high)
    too_low_N = (advantages_N < 0) & (ratio_N < 1 - low)
    return (ratio_N * advantages_N).minimum(bounded_N * advantages_N), (too_high_N | too_low_N).to(ratio_N.dtype)
