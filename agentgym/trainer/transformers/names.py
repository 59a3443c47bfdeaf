"""Names of weights in memory and in files; they differ where transformers has all experts of a layer in one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from agentgym.families.architecture import Experts
from agentgym.models.nf4 import to_nf4

T = TypeVar("T")
_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Of an expert, in the order of their rows in one tensor of all, [experts, rows, columns]."""


class FileNames:
    """In memory, weights have their names in files; adapters have none there."""

    joins = False
    """Whether a weight in memory is several in files."""

    def to_hf(self, state: Mapping[str, T]) -> dict[str, T]:
        return {name: value for name, value in state.items() if ".lora_" not in name}

    def from_hf(self, state: Mapping[str, T]) -> dict[str, T]:
        return dict(state)

    def separated(self, name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        """A whole weight in memory, as it is in files."""
        yield name, weight

    def joined(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Weights of files, as they are in memory."""
        yield from weights


class QuantizedNames(FileNames):
    """Matrices of these names are NF4 in memory. What is read of them in memory is plain already, see `full`."""

    joins = True

    def __init__(self, quantized: Iterable[str], device: torch.device) -> None:
        """device: that quantizes."""
        self._quantized, self._device = frozenset(quantized), device

    def joined(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, weight in weights:
            yield name, to_nf4(weight.to(self._device)) if name in self._quantized else weight


class ExpertNames(FileNames):
    """Each expert's matrices are weights of their own in files: `experts.3.up_proj.weight`."""

    joins = True

    def __init__(self, experts: Experts, parts: Mapping[str, tuple[str, ...]] = _PARTS) -> None:
        """parts: see `_PARTS`."""
        self._num, self._parts = experts.num, parts

    def separated(self, name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        stem, _, last = name.rpartition(".")
        if last not in self._parts or not stem.endswith(".experts"):
            yield name, weight
            return
        for expert, matrix in enumerate(weight):
            parts = self._parts[last]
            rows = matrix.chunk(len(parts))
            yield from ((f"{stem}.{expert}.{part}.weight", one) for part, one in zip(parts, rows, strict=True))

    def joined(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        waiting: dict[str, dict[tuple[int, str], Tensor]] = {}
        for name, weight in weights:
            stem, found, rest = name.partition(".experts.")
            expert, _, part = rest.removesuffix(".weight").partition(".")
            last = next((last for last, parts in self._parts.items() if part in parts), None)
            if not found or last is None or not expert.isdigit():
                yield name, weight
                continue
            joined = f"{stem}.experts.{last}"
            have = waiting.setdefault(joined, {})
            have[int(expert), part] = weight
            parts = self._parts[last]
            if len(have) == self._num * len(parts):
                whole = [torch.cat([have[one, part] for part in parts]) for one in range(self._num)]
                yield joined, torch.stack(whole)
                del waiting[joined]
        if waiting:
            raise ValueError(f"some experts of {next(iter(waiting))} did not come")
