"""Copies of tensors in the host's memory, which a checkpoint is written from while training goes on."""

from __future__ import annotations

import contextlib
import mmap
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

REGION = 256 << 20  # bytes
ALIGNMENT = 64


@dataclass(slots=True)
class _Region:
    memory: mmap.mmap
    used: int = 0


class HostMemory:
    """Space for the copies of one snapshot. On a GPU it is page-locked, and kept for the next one: locking takes longer
    than copying.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._regions: list[_Region] = []

    @property
    def size(self) -> int:
        """Bytes, of what is taken and what is kept."""
        return sum(len(region.memory) for region in self._regions)

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy in the host's memory, whole once `wait` returns. Raises MemoryError where there is no room."""
        tensor = tensor.detach()
        if not tensor.numel():
            return torch.empty_like(tensor, device="cpu")
        region = self._with_room(tensor.nbytes)
        copy = torch.frombuffer(region.memory, dtype=tensor.dtype, count=tensor.numel(), offset=region.used)
        region.used += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        copy = copy.as_strided(tensor.shape, tensor.stride()) if _dense(tensor) else copy.view(tensor.shape)
        return copy.copy_(tensor, non_blocking=self._device.type == "cuda")

    def wait(self) -> None:
        """Waits for the copies that were begun."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def release(self) -> None:
        """The copies are not needed any more."""
        if self._device.type != "cuda":
            self._regions.clear()  # each is freed with the last tensor in it
        for region in self._regions:
            region.used = 0

    def _with_room(self, size: int) -> _Region:
        for region in self._regions:
            if region.used + size <= len(region.memory):
                return region
        try:
            memory = mmap.mmap(-1, max(size, REGION), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no room for {size} bytes of a checkpoint in the host's memory: {error}") from error
        if self._device.type == "cuda":
            _lock(memory, self._device)
        self._regions.append(_Region(memory))
        return self._regions[-1]


def _dense(tensor: Tensor) -> bool:
    """Whether its elements fill the memory from the first to the last, in whatever order."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in places) == tensor.numel()


def _lock(memory: mmap.mmap, device: torch.device) -> None:
    """Where the driver refuses, copies are slower and right all the same."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    place = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    if int(runtime.cudaHostRegister(place, len(memory), 0)):
        with contextlib.suppress(RuntimeError):  # the next kernel would raise the driver's error in its place
            torch.zeros(1, device=device).add_(1)
