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
    """Each a KL divergence in nats a token, the mean of a step, above which something is done; None is never.

    warn: a warning of the run. correct: from the next step on tokens have truncated importance weights. mask: from the
    next step on tokens beyond `bound` count nothing. stop: the run ends before the update.
    """

    warn: float | None = None
    correct: float | None = None
    mask: float | None = None
    stop: float | None = None

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
    """cap: of the weights of `correct`. bound: distance of log-probabilities in nats beyond which `mask` drops a token,
    or with `drop: sequence` all tokens of a sequence that has such a token.
    """

    engine: EngineLimits = EngineLimits()
    staleness: StalenessLimits = StalenessLimits()
    cap: float = 2.0
    bound: float = 2.0
    drop: Literal["token", "sequence"] = "token"

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
