"""Lays out the new tokens of one forward pass: positions, cache places and attention masks.

Axes: see model.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.model import TokenBatch


def decode_batch(cache: KVCache, tokens: npt.NDArray[np.int64], positions_B: npt.NDArray[np.int64]) -> TokenBatch:
    """One new token for each of the first B rows: tokens[row, position]. tokens: [rows, max_len]."""
    rows = np.arange(len(positions_B))
    positions = _on(cache, positions_B)
    cached_len = _bucketed(cache, int(positions_B.max()) + 1)
    return TokenBatch(
        token_ids_T=_on(cache, tokens[rows, positions_B]),
        positions_T=positions,
        rows=slice(0, len(rows)),
        write_index=cache.write_index(_on(cache, rows), positions),
        cached_len=cached_len,
        mask=_mask(cache, positions[:, None], cached_len)[:, None],
    )


def extend_batch(
    cache: KVCache,
    tokens: npt.NDArray[np.int64],
    rows: Sequence[int],
    starts_B: npt.NDArray[np.int64],
    ends_B: npt.NDArray[np.int64],
    *,
    heads_per_kv: int,
) -> TokenBatch:
    """New tokens [start, end) of some rows, whose tokens before start are already in the cache."""
    new_B = ends_B - starts_B
    longest = int(new_B.max())
    first_B = np.cumsum(new_B) - new_B  # where each sequence begins among the packed tokens
    sequence_T = np.repeat(np.arange(len(rows)), new_B)
    offset_T = np.arange(new_B.sum()) - first_B[sequence_T]
    position_T = starts_B[sequence_T] + offset_T
    rows_B = np.asarray(rows, np.int64)
    offsets_N = np.arange(longest)
    cached_len = _bucketed(cache, int(ends_B.max()))
    positions = _on(cache, position_T)
    visible_to_BN = _on(cache, starts_B[:, None] + offsets_N)
    return TokenBatch(
        token_ids_T=_on(cache, tokens[rows_B[sequence_T], position_T]),
        positions_T=positions,
        rows=_on(cache, rows_B),
        write_index=cache.write_index(_on(cache, rows_B[sequence_T]), positions),
        cached_len=cached_len,
        mask=_mask(cache, visible_to_BN, cached_len).repeat(1, heads_per_kv, 1)[:, None],
        pad_index=_on(cache, (first_B[:, None] + np.minimum(offsets_N, new_B[:, None] - 1)).ravel()),
        unpad_index=_on(cache, sequence_T * longest + offset_T),
        last_index=_on(cache, np.cumsum(new_B) - 1),
    )


def _mask(cache: KVCache, visible_to_BN: Tensor, cached_len: int) -> Tensor:
    """[B, N, S]: 0 up to and including the last position a query may attend to, -inf after it."""
    places = torch.arange(cached_len, device=visible_to_BN.device)
    hidden = places > visible_to_BN[:, :, None]
    return torch.zeros(hidden.shape, dtype=cache.data.dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def _bucketed(cache: KVCache, length: int) -> int:
    return min(-(-length // cache.bucket) * cache.bucket, cache.max_len)


def _on(cache: KVCache, values: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(values).to(cache.data.device)
