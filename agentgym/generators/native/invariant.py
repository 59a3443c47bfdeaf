"""The forward pass in which a token's numbers do not depend on what else is computed with it.

The same bits whether a token comes alone or among others, in a prompt or one by one, at any place of the batch. Kernels
choose how they add by the sizes of what they get, so here these are sizes at which they all add in the same order:
rows in multiples of 32 (vectors without a rest, no product of a single row), and attention in pieces of a fixed length,
to which empty pieces add exact zeros. Measured on MKL, which is why `check_invariance` proves it for each model and
machine before the first request.

Axes: see model.py.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.layout import decode_batch, extend_batch
from agentgym.generators.native.model import DecoderModel, TokenBatch
from agentgym.generators.native.weights import DecoderWeights

ROWS = 32
PIECE = 128  # cached tokens
FEWEST_QUERIES = 4  # rows of a product; below, another kernel is used

_CHECKED_TOKENS = 3 * PIECE // 2  # beyond one piece


class InvariantModel(DecoderModel):
    """A batch-invariant model for float32 on one thread of a CPU. max_len: a multiple of PIECE."""

    def __init__(self, architecture: Architecture, weights: DecoderWeights, *, max_len: int) -> None:
        assert max_len % PIECE == 0
        super().__init__(architecture, weights, max_len=max_len)

    def forward(self, batch: TokenBatch, cache: KVCache) -> Tensor:
        """The base's forward pass; the vocabulary is padded too, by entries of probability 0."""
        logits_BV = super().forward(batch, cache)
        return F.pad(logits_BV, (0, -logits_BV.shape[1] % ROWS), value=-torch.inf)

    def _attention(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        num = queries.shape[2]
        copies = -(-FEWEST_QUERIES // num)
        if copies > 1:
            queries = queries.repeat(1, 1, copies, 1)
            mask = mask.expand(-1, -1, num, -1).repeat(1, 1, copies, 1)
        scores = torch.matmul(queries * self.architecture.head_dim**-0.5, keys.transpose(2, 3)) + mask
        weights = torch.softmax(scores, dim=-1)
        attended = torch.matmul(weights[..., :PIECE], values[:, :, :PIECE])
        for begin in range(PIECE, keys.shape[2], PIECE):
            end = begin + PIECE
            attended += torch.matmul(weights[..., begin:end], values[:, :, begin:end])
        return attended[:, :, :num]

    def _padded(self, values: Tensor) -> Tensor:
        missing = -len(values) % ROWS
        return torch.cat([values, values.new_zeros(missing, *values.shape[1:])]) if missing else values


def invariant_cache(architecture: Architecture, *, rows: int, max_len: int, like: Tensor) -> KVCache:
    """Makes the cache of an InvariantModel. like: its weights' device and type."""
    return KVCache(architecture, rows=rows, max_len=max_len, device=like.device, dtype=like.dtype, bucket=PIECE)


def check_invariance(model: DecoderModel) -> None:
    """Raises UserError where one sequence gets other logits alone than beside others, or in one pass than in many."""
    architecture = model.architecture
    length = min(_CHECKED_TOKENS, architecture.max_positions or _CHECKED_TOKENS)
    max_len = -(-length // PIECE) * PIECE
    generator = np.random.default_rng(0)
    tokens = generator.integers(architecture.vocab_size, size=(5, max_len))
    tokens[1:3] = tokens[0]

    def logits(cuts: list[tuple[list[int], int, int]], row: int) -> Tensor:
        """The logits after the last token of each row, whose tokens come in passes of (rows, first, end)."""
        cache = invariant_cache(architecture, rows=5, max_len=max_len, like=model.weights.embedding)
        for rows, first, end in cuts:
            if end - first == 1:
                found = model.forward(decode_batch(cache, tokens, np.full(len(rows), first)), cache)
            else:
                starts, ends = np.full(len(rows), first), np.full(len(rows), end)
                ends[1:] -= np.minimum(np.arange(1, len(rows)), end - first - 1) * (rows[-1] == 4)
                layout = extend_batch(cache, tokens, rows, starts, ends, heads_per_kv=architecture.heads_per_kv)
                found = model.forward(layout, cache)
        return found[row]

    alone = logits([([0], 0, length)], 0)
    with_others = logits([([0, 4, 3], 0, length)], 0)
    one_by_one = logits([([0, 1, 2], 0, 9), *(([0, 1, 2], n, n + 1) for n in range(9, length))], 1)
    if not (torch.equal(alone, with_others) and torch.equal(alone, one_by_one)):
        raise UserError(
            "on this machine the native engine gives a sequence other numbers alone than among others, so a run here "
            "can't be a function of its recipe: leave out loop.deterministic, or use another machine"
        )
