"""A digest of a model's weights that is the same on every device, at the speed of its memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

LINE_BYTES = 512
CHUNK_BYTES = 2**24  # summed at a time


def digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """The digest of names, types, shapes and bits, whatever their order. Hexadecimal."""
    lines = sorted(f"{name} {weight.dtype} {tuple(weight.shape)} {_of_bits(weight)}\n" for name, weight in weights)
    return hashlib.blake2b("".join(lines).encode(), digest_size=8).hexdigest()


def _of_bits(weight: Tensor) -> str:
    """The bits are lines of 64-bit numbers: their sums by column and by line are hashed, so places count too."""
    bits = weight.detach().contiguous().reshape(-1).view(torch.uint8)
    tail = torch.zeros(LINE_BYTES, dtype=torch.uint8, device=bits.device)
    whole = len(bits) // LINE_BYTES * LINE_BYTES
    tail[: len(bits) - whole] = bits[whole:]
    parts = [bits[begin : min(begin + CHUNK_BYTES, whole)] for begin in range(0, whole, CHUNK_BYTES)]
    found = hashlib.blake2b(digest_size=16)
    for part in (*parts, tail):
        lines = part.view(torch.int64).view(-1, LINE_BYTES // 8)
        for axis in (0, 1):
            found.update(lines.sum(axis).cpu().numpy().tobytes())
    return found.hexdigest()
