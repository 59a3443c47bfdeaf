"""Tensors of a custom training loop, as samples that models score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentgym.errors import UserError
from agentgym.types import Sample

if TYPE_CHECKING:
    from torch import Tensor


def rows_as_samples(token_ids_BL: Tensor, num_given: int) -> list[Sample]:
    """A sample for each row, of which the tokens after the first `num_given` are scored.

    Raises UserError for a tensor without such tokens.
    """
    if token_ids_BL.ndim != 2 or not 0 <= num_given < token_ids_BL.shape[1]:
        shape = [*token_ids_BL.shape]
        raise UserError(
            f"token ids are {shape}; give [rows, tokens of a row], more than the {num_given} that are given"
        )
    begin = max(1, num_given)
    samples = []
    for number, row in enumerate(token_ids_BL.tolist()):
        zeros, scored = (0.0,) * len(row), range(len(row))
        mask = tuple(float(place >= begin) for place in scored)
        versions = tuple(0 if place >= begin else -1 for place in scored)
        samples.append(
            Sample(
                sample_id=f"row/{number}",
                token_ids=tuple(row),
                loss_mask=mask,
                logprobs=zeros,
                advantages=zeros,
                versions=versions,
            )
        )
    return samples


def scores_as_tensor(scores: Sequence[Sequence[float]], num_given: int) -> Tensor:
    """What models gave for `rows_as_samples`, [B, L - num_given] of float32."""
    import torch

    return torch.tensor([row[num_given:] for row in scores], dtype=torch.float32)
