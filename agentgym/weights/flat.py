"""Weights side by side in one buffer of bytes: where each lies, and parts of the buffer that are sent at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

BUCKET_BYTES = 256 * 2**20  # sent or checked at a time
ALIGNMENT = 256  # bytes; as the GPU allocator's own
SUMMED_LINES = 2**18  # of a checksum, at a time: 64 MiB of bytes, of which torch makes 128 of 64-bit numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """begin: the weight's first byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int

    @property
    def end(self) -> int:
        return self.begin + prod(self.shape) * self.dtype.itemsize

    def view(self, buffer: Tensor, offset: int = 0) -> Tensor:
        """The weight in a buffer whose first byte is that of `offset`."""
        return buffer[self.begin - offset : self.end - offset].view(self.dtype).view(self.shape)


Layout = dict[str, Entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Weights that follow each other, from byte `begin` to `end`."""

    names: tuple[str, ...]
    begin: int
    end: int


def layout_of(weights: Mapping[str, Tensor]) -> Layout:
    layout: Layout = {}
    position = 0
    for name, tensor in weights.items():
        layout[name] = Entry(dtype=tensor.dtype, shape=tuple(tensor.shape), begin=position)
        position = _aligned(layout[name].end)
    return layout


def num_bytes(layout: Layout) -> int:
    return max((_aligned(entry.end) for entry in layout.values()), default=0)


def fill(buffer: Tensor, layout: Layout, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Raises ValueError for weights that are not those of the layout, or come twice."""
    missing = set(layout)
    for name, tensor in once(weights):
        entry = layout.get(name)
        if entry is None or (entry.dtype, entry.shape) != (tensor.dtype, tuple(tensor.shape)):
            raise ValueError(f"weight {name!r} is {tensor.dtype} {tuple(tensor.shape)}; the first version had {entry}")
        entry.view(buffer).copy_(tensor.detach())
        missing.remove(name)
    if missing:
        raise ValueError(f"{len(missing)} weights of the first version did not come, such as {min(missing)!r}")


def once(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The same. Raises ValueError for a name that comes twice."""
    seen: set[str] = set()
    for name, tensor in weights:
        if name in seen:
            raise ValueError(f"the weights contain {name!r} twice")
        seen.add(name)
        yield name, tensor


def buckets(layout: Layout, most: int) -> list[Bucket]:
    """Groups weights into buckets of at most so many bytes, or of one weight that has more."""
    found: list[Bucket] = []
    names: list[str] = []
    begin = 0
    for name, entry in layout.items():
        if names and entry.end - begin > most:
            found.append(Bucket(names=tuple(names), begin=begin, end=entry.begin))
            names, begin = [], entry.begin
        names.append(name)
    if names:
        found.append(Bucket(names=tuple(names), begin=begin, end=num_bytes(layout)))
    return found


def checksums(buffer: Tensor, parts: Iterable[Bucket]) -> list[int]:
    """The checksum of each part of a buffer. They are read from the device once for all."""
    sums = [_sums(buffer[part.begin : part.end]) for part in parts]
    return [_joined(*two) for two in torch.stack(sums).tolist()] if sums else []


def checksum(data: Tensor) -> int:
    """The checksum of bytes, a multiple of ALIGNMENT: they are lines of 32-bit numbers, whose sums by column and by
    line count, each times an odd number of its place. So bytes that change places, within a line or between lines,
    change it too.
    """
    return _joined(*_sums(data).tolist())


def _joined(by_column: int, by_line: int) -> int:
    return by_column % 2**64 ^ by_line % 2**64 << 64


def _sums(data: Tensor) -> Tensor:
    """Sums by column and by line, [2], as 64-bit numbers that wrap around."""
    words = data.view(torch.int32).view(-1, ALIGNMENT // 4)
    sums = [[part.sum(axis, dtype=torch.int64) for part in torch.split(words, SUMMED_LINES)] for axis in (0, 1)]
    return torch.stack([_weighted_sum(torch.stack(sums[0]).sum(0)), _weighted_sum(torch.cat(sums[1]))])


def _weighted_sum(sums: Tensor) -> Tensor:
    weights = torch.arange(1, 2 * len(sums), 2, device=sums.device)
    return (sums * weights).sum()


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT
