"""Draws one token per sequence, with noise that depends on the request's seed and the token's place only.

Axes: B sequences, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds_B: npt.NDArray[np.uint64], positions_B: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per sequence: a hash of its seed and of how many tokens it has sampled.

    Counter-based, so that what else runs in the batch can't change it. 48 bits: with all 53, the largest
    number times a sum could round up to the sum. Source of the hash: SplitMix64 (Steele et al., 2014).
    """
    counters = _mixed(seeds_B) + positions_B.astype(np.uint64) * _GOLDEN
    return (_mixed(counters) >> np.uint64(16)).astype(np.float64) * 2.0**-48


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def sample(
    logits_BV: Tensor,
    *,
    uniforms_B: npt.NDArray[np.float64],
    temperature_B: npt.NDArray[np.float32],
    top_k_B: npt.NDArray[np.int64],
    top_p_B: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Tokens [B] and their log-probabilities [B] in the distribution that was sampled from.

    Temperature first, then top-k, then top-p of what is left. At temperature 0 the likeliest token is
    taken and its log-probability is the model's own (temperature 1, no limits).
    """
    device = logits_BV.device
    greedy_B = temperature_B == 0
    if (temperature_B != 1).any():
        divisor = torch.from_numpy(np.where(greedy_B, np.float32(1), temperature_B)).to(device)
        scaled_BV = logits_BV / divisor[:, None]
    else:
        scaled_BV = logits_BV
    limited_B = ((top_k_B > 0) | (top_p_B < 1)) & ~greedy_B
    if limited_B.any():
        rows = torch.from_numpy(np.flatnonzero(limited_B)).to(device)
        top_k = torch.from_numpy(top_k_B[limited_B]).to(device)
        top_p = torch.from_numpy(top_p_B[limited_B]).to(device)
        scaled_BV = scaled_BV.index_copy(0, rows, keep_top(scaled_BV[rows], top_k, top_p))
    logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
    cumulated_BV = logprobs_BV.exp().cumsum(dim=-1, dtype=torch.float64)
    target = torch.from_numpy(uniforms_B).to(device)[:, None] * cumulated_BV[:, -1:]
    tokens = torch.searchsorted(cumulated_BV, target, right=True)  # first token whose sum is above the target
    if greedy_B.any():
        likeliest = logits_BV.argmax(dim=-1, keepdim=True)
        tokens = torch.where(torch.from_numpy(greedy_B).to(device)[:, None], likeliest, tokens)
    tokens = tokens.clamp_(max=logits_BV.shape[-1] - 1)  # logits that are not numbers end past the last
    logprobs = logprobs_BV.gather(1, tokens)
    return tokens[:, 0].cpu().numpy(), logprobs[:, 0].cpu().numpy()


def keep_top(logits_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor) -> Tensor:
    """Logits with -inf outside the top-k, then outside the smallest set whose probability reaches top-p.

    top_k 0 and top_p 1 set no limit. The likeliest token always stays.
    """
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
    ranks = torch.arange(logits_BV.shape[-1], device=logits_BV.device)
    limit_B = torch.where(top_k_B > 0, top_k_B, logits_BV.shape[-1])
    sorted_BV = sorted_BV.masked_fill(ranks >= limit_B[:, None], -torch.inf)
    probs_BV = sorted_BV.softmax(dim=-1)
    before_BV = probs_BV.cumsum(dim=-1) - probs_BV
    outside_BV = (before_BV >= top_p_B[:, None]) & (top_p_B < 1)[:, None] & (ranks > 0)
    return torch.empty_like(logits_BV).scatter_(1, order_BV, sorted_BV.masked_fill(outside_BV, -torch.inf))
