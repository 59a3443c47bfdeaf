"""What the losses of RL have in common: KL to a reference, entropy bonus, correction for the sampler, metrics."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from agentgym.rl.losses.correction import Correction, correction_weights
from agentgym.rl.losses.kl import Estimator, kl
from agentgym.rl.losses.loss import Loss, Reduction, TokenLoss, TrainedTokens
from agentgym.rl.losses.mismatch import METRICS, mismatch
from agentgym.rl.losses.ratio import sums_to_go

if TYPE_CHECKING:
    from torch import Tensor

Old: TypeAlias = Literal["sampler", "trainer"]
BOUNDS: Mapping[str, tuple[float, float]] = {
    "clip_low": (1e-9, 1.0),
    "clip_high": (1e-9, math.inf),
    "kl_coef": (0.0, math.inf),
    "entropy_coef": (0.0, math.inf),
    "correction_floor": (0.0, 1.0),
    "correction_cap": (1.0, math.inf),
    "importance_floor": (0.0, 1.0),
    "importance_cap": (1.0, math.inf),
    "dual_clip": (0.0, math.inf),
    "threshold": (1e-9, math.inf),
    "temperature_positive": (1e-9, math.inf),
    "temperature_negative": (1e-9, math.inf),
}
"""What is allowed for a field of that name, both ends included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss(Loss):
    """-weight * surrogate + kl_coef * KL - entropy_coef * entropy of each token; the surrogate is the subclass's."""

    metrics: ClassVar[Mapping[str, Reduction]] = {
        **METRICS,
        "train/clip_share": "mean",
        "train/correction_mean": "mean",
        "train/correction_cut_share": "mean",
    }

    old: Old = "sampler"
    """Whose policy the ratio is against: the `sampler`'s, by the log-probabilities that came with the tokens, or the
    `trainer`'s before the batch, computed again where a batch makes several updates."""
    correction: Correction = "none"
    """With `old: trainer`, weights of the trainer's old policy against the sampler, of tokens or sequences: truncated,
    or 0 outside of the bounds with `_mask` (losses/correction.py)."""
    correction_floor: float = 0.0
    """The least weight of a correction."""
    correction_cap: float = 2.0
    """The largest weight of a correction."""
    kl_coef: float = 0.0
    """The weight of KL(policy || reference); 0 needs no reference model."""
    kl: Estimator = "k3"
    """The estimate of that KL (losses/kl.py): k3 is never negative and suits a loss, k1 suits a reward."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Add the KL to the `loss`, or take it from the advantages as a part of the `reward`: each token's own and that of
    the tokens after it, without gradient (as REINFORCE++, arXiv:2501.03262, without its normalization)."""
    entropy_coef: float = 0.0
    """The weight of the entropy bonus (Mnih et al., arXiv:1602.01783); raise it where the entropy collapses."""

    def __post_init__(self) -> None:
        """Raises ValueError for a field outside of BOUNDS."""
        for name in {field.name for field in fields(self)} & BOUNDS.keys():
            value, (low, high) = getattr(self, name), BOUNDS[name]
            if not low <= value <= high:
                least = "above 0" if low == BOUNDS["clip_low"][0] else f"at least {low:g}"
                most = "" if high == math.inf else f" and at most {high:g}"
                raise ValueError(f"{name} is {value}; allowed is {least}{most}")
        if self.old == "sampler" and self.correction != "none":
            raise ValueError(
                f"correction is {self.correction!r} with old: sampler, whose ratio corrects for the sampler already; "
                "set old: trainer, or correction: none"
            )

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def needs_old(self) -> bool:
        return self.old == "trainer" or (self.needs_reference and self.kl_in == "reward")

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef > 0

    @abstractmethod
    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor | None]:
        """What each token adds to the objective, [N], and 1.0 where the gradient was stopped, if it can be.

        old_N: log-probabilities of the old policy, without gradient.
        """

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        metrics = mismatch(tokens, version)
        loss_N: Tensor | float = 0.0
        if self.needs_reference:
            now_N = tokens.logprobs if self.kl_in == "loss" else tokens.old_logprobs
            kl_N = kl(now_N, tokens.ref_logprobs, self.kl)
            metrics["train/kl_ref"] = kl_N.detach()
            if self.kl_in == "loss":
                loss_N = self.kl_coef * kl_N
            else:
                to_go_N = sums_to_go(kl_N.detach(), tokens.sample_index)
                tokens = replace(tokens, advantages=tokens.advantages - self.kl_coef * to_go_N)
        old_N = tokens.sampler_logprobs if self.old == "sampler" else tokens.old_logprobs
        surrogate_N, stopped_N = self.surrogate(tokens, old_N)
        if stopped_N is not None:
            metrics["train/clip_share"] = stopped_N
        if self.correction != "none":
            weights_N, metrics["train/correction_cut_share"] = correction_weights(
                tokens.old_logprobs,
                tokens.sampler_logprobs,
                tokens.sample_index,
                kind=self.correction,
                floor=self.correction_floor,
                cap=self.correction_cap,
            )
            metrics["train/correction_mean"] = weights_N
            surrogate_N = weights_N * surrogate_N
        loss_N = loss_N - surrogate_N
        if self.needs_entropy:
            loss_N = loss_N - self.entropy_coef * tokens.entropy
        return TokenLoss(loss=loss_N, metrics=metrics)
