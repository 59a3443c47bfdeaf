"""What a loss over logits is written with, where a custom training loop gives tensors of its own.

Axes: B rows, L tokens of a row, T tokens that are scored, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def compute_logprobs(logits_BLV: Tensor, input_ids_BT: Tensor, temperature: float = 1.0, align: bool = True) -> Tensor:
    """Log-probabilities of tokens in float32, [B, T].

    align: the tokens are the last T of the rows of which these are the logits; else logits t are for token t.
    """
    if align:
        logits_BLV = logits_BLV[:, -input_ids_BT.shape[1] - 1 : -1]
    scaled_NV = logits_BLV.float().flatten(0, 1) / temperature
    return -F.cross_entropy(scaled_NV, input_ids_BT.flatten().long(), reduction="none").view(input_ids_BT.shape)


def compute_ratio(logprobs_BT: Tensor, generator_logprobs_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """The policy's probabilities over the sampler's; 1 where the mask is 0."""
    return torch.where(loss_mask_BT.bool(), logprobs_BT - generator_logprobs_BT, 0.0).exp()


def compute_kl(logprobs_BT: Tensor, ref_logprobs_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """The estimate k3 of KL(policy || reference), of each token; 0 where the mask is 0."""
    difference = torch.where(loss_mask_BT.bool(), ref_logprobs_BT - logprobs_BT, 0.0)
    return difference.exp() - difference - 1


def aggregate(values_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """The mean over the tokens where the mask is not 0."""
    mask = loss_mask_BT.to(values_BT.dtype)
    return (values_BT * mask).sum() / mask.sum().clamp(min=1.0)
