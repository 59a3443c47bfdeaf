"""A dense decoder's forward pass for inference: packed tokens in, logits of each sequence's last token out.

Axes: T tokens of one pass, B sequences, N new tokens of the longest sequence, S cached tokens that are
attended to, H hidden size, K kv heads, G query heads per kv head, D head dim, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from agentgym.families.architecture import Architecture
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.weights import DecoderWeights, LayerWeights
from agentgym.models.matmul import matmul_float32
from agentgym.models.rope import inverse_frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """New tokens of B sequences, packed one sequence after the other.

    rows: the sequences' cache rows. write_index: see `KVCache.write_index`. mask: [B, 1, G * N, S], added
    to the scores. pad_index: [B * N], the packed token at each place of the padded rectangle.
    unpad_index: [T], the place of each packed token in it. last_index: [B], each sequence's last token.
    The three are None when every sequence has one new token.
    """

    token_ids_T: Tensor
    positions_T: Tensor
    rows: slice | Tensor
    write_index: Tensor
    cached_len: int
    mask: Tensor
    pad_index: Tensor | None = None
    unpad_index: Tensor | None = None
    last_index: Tensor | None = None


class DecoderModel:
    """The same function as transformers' Qwen3ForCausalLM, and those of the other dense families, on our own cache.

    No autograd.
    """

    def __init__(self, architecture: Architecture, weights: DecoderWeights, *, max_len: int) -> None:
        self.architecture = architecture
        self.weights = weights
        device = weights.embedding.device
        self._norm_floors = {
            size: torch.tensor((size * architecture.norm_eps) ** 0.5, device=device)
            for size in (architecture.dim, architecture.head_dim)
        }
        frequencies = inverse_frequencies(architecture.rope_theta, architecture.head_dim, architecture.rope_scaling)
        angles = torch.arange(max_len, device=device, dtype=torch.float32)[:, None] * frequencies.to(device)
        self._rotations = torch.polar(torch.ones_like(angles), angles)  # [max_len, D / 2], complex

    def forward(self, batch: TokenBatch, cache: KVCache) -> Tensor:
        """float32 logits [B, V] after each sequence's last token; keys and values go into the cache."""
        weights = self.weights
        hidden_TH = self._padded(F.embedding(batch.token_ids_T, weights.embedding))
        rotations = self._padded(self._rotations[batch.positions_T].unsqueeze(1))
        for index, layer in enumerate(weights.layers):
            hidden_TH = self._attend(index, layer, hidden_TH, rotations, batch, cache)
            gate_up = F.linear(self._norm(hidden_TH, layer.ffn_norm), layer.gate_up)
            gate, up = gate_up.chunk(2, dim=-1)
            hidden_TH = torch.addmm(hidden_TH, F.silu(gate).mul_(up), layer.down.t())
        if batch.last_index is not None:
            hidden_TH = self._padded(hidden_TH[batch.last_index])
        return matmul_float32(self._norm(hidden_TH, weights.norm), weights.head.t())[: len(batch.mask)]

    def _attend(
        self, index: int, layer: LayerWeights, hidden_TH: Tensor, rotations: Tensor, batch: TokenBatch, cache: KVCache
    ) -> Tensor:
        architecture, num_tokens = self.architecture, len(batch.token_ids_T)
        qkv = F.linear(self._norm(hidden_TH, layer.attention_norm), layer.qkv, layer.qkv_bias)
        qkv = qkv.view(-1, architecture.num_heads + 2 * architecture.num_kv_heads, architecture.head_dim)
        queries_keys = qkv[:, : architecture.num_heads + architecture.num_kv_heads]
        normed = queries_keys if layer.qk_norm is None else self._norm(queries_keys, layer.qk_norm)
        pairs = torch.view_as_complex(normed.float().view(*normed.shape[:-1], -1, 2))
        queries_keys.copy_(torch.view_as_real(pairs * rotations).flatten(-2))  # into qkv, beside the values
        qkv = qkv[:num_tokens]
        cache.write(index, batch.write_index, qkv[:, architecture.num_heads :].reshape(-1, architecture.head_dim))
        keys, values = cache.read(index, batch.rows, batch.cached_len)
        queries = self._by_kv_head(qkv[:, : architecture.num_heads], batch)
        attended = self._attention(queries, keys, values, batch.mask)
        return torch.addmm(hidden_TH, self._padded(self._packed(attended, batch)), layer.output.t())

    def _attention(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """queries: [B, K, G * N, D]; keys, values: [B, K, S, D]; mask: see TokenBatch."""
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    def _padded(self, values: Tensor) -> Tensor:
        """Pads to the number of rows that the kernels are to see; those of the tokens are first."""
        return values

    def _by_kv_head(self, queries: Tensor, batch: TokenBatch) -> Tensor:
        """[T, heads, D] to [B, K, G * N, D]: heads that share keys are rows of one product."""
        if batch.pad_index is None:
            return queries.view(len(queries), self.architecture.num_kv_heads, -1, self.architecture.head_dim)
        size = self.architecture
        padded = queries[batch.pad_index].view(len(batch.mask), -1, size.num_kv_heads, size.heads_per_kv, size.head_dim)
        return padded.permute(0, 2, 3, 1, 4).flatten(2, 3)

    def _packed(self, attended: Tensor, batch: TokenBatch) -> Tensor:
        """[B, K, G * N, D] to [T, heads * D]."""
        if batch.unpad_index is None:
            return attended.flatten(1)
        size = self.architecture
        split = attended.view(len(attended), size.num_kv_heads, size.heads_per_kv, -1, size.head_dim)
        return split.permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1)[batch.unpad_index]

    def _norm(self, values: Tensor, scale: Tensor) -> Tensor:
        """RMSNorm in float32 by few kernels: sqrt(mean(x^2) + eps) is |(|x|, sqrt(n eps))| / sqrt(n).

        scale: the norm's weight times sqrt(n), float32.
        """
        length = torch.linalg.vector_norm(values, dim=-1, keepdim=True, dtype=torch.float32)
        length.hypot_(self._norm_floors[values.shape[-1]])
        normed: Tensor = (values / length).mul_(scale)
        return normed.to(values.dtype)
