"""The loop's and the algorithm's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Aggregation: TypeAlias = Literal["token_mean", "sequence_mean", "fixed_horizon"]
AdvantageName: TypeAlias = Literal["mean_only", "std_normalized", "rloo"]
Correction: TypeAlias = Literal["sampler", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """max_staleness: in weight versions; 0 is synchronous RL."""

    steps: int = 60
    groups_per_step: int = 16
    group_size: int = 8
    max_staleness: int = 1
    max_refills: int = 8  # groups without signal that one step may skip, times groups_per_step
    checkpoint_every: int = 20
    check_sync_every: int = 10  # steps between comparisons of the generators with the trainer; 0 is none
    eval_every: int = 0  # steps between held-out checks while training; 0 is none
    eval_tasks: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.groups_per_step) < 1 or self.group_size < 2:
            raise ValueError(
                f"loop.steps {self.steps} and loop.groups_per_step {self.groups_per_step} must be at least 1, "
                f"loop.group_size {self.group_size} at least 2: an advantage compares episodes of one group"
            )
        spans = (
            self.max_staleness,
            self.checkpoint_every,
            self.check_sync_every,
            self.eval_every,
        )
        if min(spans) < 0:
            raise ValueError(
                "loop.max_staleness, checkpoint_every, check_sync_every and eval_every "
                f"can't be negative; got {spans}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoConfig:
    """Group Relative Policy Optimization (arXiv:2402.03300) with the field's usual repairs.

    clip_low, clip_high: the ratio stays in [1 - clip_low, 1 + clip_high] (asymmetric as in DAPO,
    arXiv:2503.14476). kl_coef: weight of the k3 estimate of KL(policy || reference); 0 uses no reference.
    importance_cap: truncated importance weights. correction: "none" ignores the sampler's log-probabilities
    (ratio always 1); it exists to show what that costs.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coef: float = 0.0
    importance_cap: float = 2.0
    aggregation: Aggregation = "token_mean"
    horizon: int = 256  # divisor per sequence of fixed_horizon
    advantage: AdvantageName = "std_normalized"
    correction: Correction = "sampler"

    def __post_init__(self) -> None:
        if not 0 < self.clip_low < 1 or self.clip_high <= 0 or self.kl_coef < 0 or self.importance_cap < 1:
            raise ValueError(
                "grpo: allowed are 0 < clip_low < 1, clip_high > 0, kl_coef >= 0, importance_cap >= 1; "
                f"got {self.clip_low}, {self.clip_high}, {self.kl_coef}, {self.importance_cap}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """Supervised fine-tuning: cross-entropy on the tokens that a sample's loss_mask marks."""

    aggregation: Aggregation = "token_mean"
    horizon: int = 256  # divisor per sequence of fixed_horizon
