"""Keys and values of all sequences: one preallocated row per sequence.

Axes: T tokens of one forward pass, K kv heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentgym.commands.text import memory
from agentgym.errors import UserError
from agentgym.families.architecture import Architecture


class KVCache:
    """data: [layers, 2 (keys, values), rows, K, max_len, D].

    Starts as zeros: what attention masks out is still multiplied by 0, so it must be finite.
    """

    def __init__(
        self,
        architecture: Architecture,
        *,
        rows: int,
        max_len: int,
        device: torch.device,
        dtype: torch.dtype,
        bucket: int = 32,
    ) -> None:
        """bucket: lengths that are read are rounded up to it, so that kernels see few different sizes."""
        self.rows = rows
        self.max_len = max_len
        self.bucket = bucket
        self.num_kv_heads = architecture.num_kv_heads
        size = (architecture.num_layers, 2, rows, architecture.num_kv_heads, max_len, architecture.head_dim)
        try:
            self.data = (
                _lazy_zeros(size, dtype) if device.type == "cpu" else torch.zeros(size, device=device, dtype=dtype)
            )
        except (MemoryError, torch.OutOfMemoryError) as error:
            gib = np.prod(size, dtype=np.int64) * dtype.itemsize / 2**30
            raise UserError(
                f"the key-value cache of {rows} rows x {max_len} tokens takes {memory(gib)} and does not fit; "
                "lower generator.max_batch or generator.max_model_len"
            ) from error
        self._layers = [self.data[layer].view(-1, architecture.head_dim) for layer in range(architecture.num_layers)]
        # where (kind, kv head) lies within a layer, before the row and the position are added
        kinds = torch.arange(2, device=device)[:, None] * rows * architecture.num_kv_heads * max_len
        heads = torch.arange(architecture.num_kv_heads, device=device)[None, :] * max_len
        self._offsets = kinds + heads

    def write_index(self, rows_T: Tensor, positions_T: Tensor) -> Tensor:
        """Where `write` puts each token's keys and values: [T * 2 * K], the same for all layers."""
        starts = rows_T * (self.num_kv_heads * self.max_len) + positions_T
        return (starts[:, None, None] + self._offsets).flatten()

    def write(self, layer: int, index: Tensor, keys_values: Tensor) -> None:
        """keys_values: [T * 2 * K, D]."""
        self._layers[layer].index_copy_(0, index, keys_values)

    def read(self, layer: int, rows: slice | Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of some rows, each [rows, K, length, D]; no copy when rows is a slice."""
        keys, values = self.data[layer]
        return keys[rows, :, :length], values[rows, :, :length]

    def copy_prefix(self, source: int, targets: Sequence[int], length: int) -> None:
        self.data[:, :, list(targets), :, :length] = self.data[:, :, source : source + 1, :, :length]

    def swap(self, first: int, second: int, length: int) -> None:
        """Exchange the first `length` positions of two rows."""
        self.data[:, :, [first, second], :, :length] = self.data[:, :, [second, first], :, :length]


def _lazy_zeros(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory the system hands out only when a page is first written."""
    raw = np.zeros(int(np.prod(size, dtype=np.int64)) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(size)
