"""Frequencies of rotary positions, for the trainer and the native engine alike.

Axes: D2 half the dimensions of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from agentgym.families.architecture import RopeScaling


def inverse_frequencies(theta: float, head_dim: int, scaling: RopeScaling | None) -> Tensor:
    """Radians a token of each pair of dimensions, [D2], float32, on torch's default device.

    The operations and their order are those of transformers, so that the numbers are the same to the last bit.
    Source of the scaling: the reference code of Llama 3.1 (`apply_scaling`).
    """
    frequencies_D2 = 1.0 / (theta ** (torch.arange(0, head_dim, 2, dtype=torch.float) / head_dim))
    if scaling is None:
        return frequencies_D2
    waves_D2 = 2 * math.pi / frequencies_D2  # tokens
    longest_kept = scaling.original_context / scaling.high_freq_factor
    shortest_divided = scaling.original_context / scaling.low_freq_factor
    divided_D2 = torch.where(waves_D2 > shortest_divided, frequencies_D2 / scaling.factor, frequencies_D2)
    share_D2 = (scaling.original_context / waves_D2 - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between_D2 = (1 - share_D2) * divided_D2 / scaling.factor + share_D2 * divided_D2
    is_between_D2 = (waves_D2 >= longest_kept) & (waves_D2 <= shortest_divided)
    return torch.where(is_between_D2, between_D2, divided_D2)
