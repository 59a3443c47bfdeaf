"""Rotary positions with scaled frequencies, which torchtitan has only for another order of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentgym.models.architecture import Architecture, RopeScaling
from agentgym.models.rope import inverse_frequencies
from agentgym.trainer import titan


class ScaledRoPE(titan.CosSinRoPE):  # type: ignore[misc]  # torchtitan has no types
    """Applied as torchtitan's; the frequencies are ours."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.CosSinRoPE.Config):  # type: ignore[misc]
        frequency_scaling: RopeScaling | None = None

    def _precompute_cache(self) -> Tensor:
        """Cosines, then sines, of all positions: [max_seq_len, 2 * dim]."""
        config = self.config
        frequencies = inverse_frequencies(config.theta, config.dim, config.frequency_scaling)
        angles = torch.outer(torch.arange(config.max_seq_len, dtype=torch.float), frequencies).repeat(1, 2)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rope_config(architecture: Architecture, max_len: int) -> Any:
    return ScaledRoPE.Config(
        dim=architecture.head_dim,
        max_seq_len=max_len,
        theta=architecture.rope_theta,
        frequency_scaling=architecture.rope_scaling,
    )
