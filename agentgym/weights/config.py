"""The weight store's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsConfig:
    """keep: the newest versions that stay; a respawned replica loads one of them."""

    store: Literal["shared_memory", "torchstore"] = "shared_memory"
    keep: int = 2

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"weights.keep is {self.keep}; give at least 1")
