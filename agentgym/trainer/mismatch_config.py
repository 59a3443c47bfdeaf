"""Limits on the mismatch between generators and trainer, and what happens beyond them. No torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

Action: TypeAlias = Literal["warn", "correct", "mask", "stop"]
Part: TypeAlias = Literal["engine", "staleness"]
PARTS: tuple[Part, Part] = ("engine", "staleness")


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchLimits:
    """KL divergences in nats a token, means of a step, above which something is done; null is never."""

    warn: float | None = None
    """The KL divergence (nats a token, mean of a step) above which the run warns once, with the likely cause."""
    correct: float | None = None
    """The KL divergence above which tokens have truncated importance weights from the next step on; null is never."""
    mask: float | None = None
    """The KL divergence above which tokens off by more than `bound` are left out from the next step on; null is never.
    """
    stop: float | None = None
    """The KL divergence above which the run ends before the update; null is never."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(
                    f"{field.name} is {value:g}; give a number of nats a token, at least 0, or null for never"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits(MismatchLimits):
    """Limits for tokens that exactly the trained weights sampled: two implementations of one model."""

    warn: float | None = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessLimits(MismatchLimits):
    """Limits for what tokens of older weights have beyond that: the weights moved on."""

    warn: float | None = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchConfig:
    engine: EngineLimits = EngineLimits()
    """Limits for tokens that exactly the trained weights sampled: two implementations of one model."""
    staleness: StalenessLimits = StalenessLimits()
    """Limits for what tokens of older weights have beyond that: the weights moved on."""
    cap: float = 2.0
    """The largest importance weight of `correct`."""
    bound: float = 2.0
    """The distance of log-probabilities, in nats, beyond which `mask` drops a token."""
    drop: Literal["token", "sequence"] = "token"
    """What `mask` drops: the token alone, or all tokens of a sequence that has such a token."""

    def __post_init__(self) -> None:
        if not 1 <= self.cap < math.inf or not 0 < self.bound < math.inf:
            raise ValueError(
                f"trainer.mismatch.cap is {self.cap:g} and bound {self.bound:g}; give a cap of at least 1 and a bound "
                "above 0"
            )

    def limit(self, part: Part, action: Action) -> float | None:
        found: float | None = getattr(getattr(self, part), action)
        return found

    @property
    def changes_losses(self) -> bool:
        """Whether it can come to weights or masks of tokens."""
        return any(limit is not None for part in (self.engine, self.staleness) for limit in (part.correct, part.mask))
