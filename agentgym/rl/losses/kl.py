"""Estimates of KL(policy || reference) on tokens that the policy sampled.

Source: J. Schulman, "Approximating KL divergence", 2020. With r = ref / p, whose mean under p is 1:

    k1 = -log r              unbiased; negative for half of the tokens
    k2 = (log r)^2 / 2       biased, small variance
    k3 = r - 1 - log r       unbiased, never negative

As a term of the loss what counts is the gradient. On tokens of the policy that of k1 is 0 in the mean (it is the score
function), that of k2 is the gradient of the KL divergence, and that of k3 is the gradient of KL(reference || policy)
(arXiv:2506.09477, arXiv:2510.01555). As a part of the reward only the value counts: there k1 gives the gradient of the
KL divergence, and k3, equal in value, does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from agentgym.rl.losses.ratio import log_ratio

if TYPE_CHECKING:
    from torch import Tensor

Estimator: TypeAlias = Literal["k1", "k2", "k3"]


def k3(log_ratio_N: Tensor) -> Tensor:
    """KL(p || q) estimated on tokens of p: q/p - 1 - log(q/p), never negative, unbiased.

    log_ratio_N: log(q / p).
    """
    return log_ratio_N.exp() - 1.0 - log_ratio_N


def kl(logprobs_N: Tensor, ref_logprobs_N: Tensor, estimator: Estimator) -> Tensor:
    """The divergence of each token, in nats. The gradient flows through logprobs_N."""
    log_ratio_N = log_ratio(ref_logprobs_N, logprobs_N)
    if estimator == "k1":
        return -log_ratio_N
    return log_ratio_N.square() / 2 if estimator == "k2" else k3(log_ratio_N)
