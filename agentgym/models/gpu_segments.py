"""How torch takes a GPU's memory: in segments that grow, but for what other processes map.

Segments of a fixed size are left with holes that nothing fits into; of Qwen3-4B's trainer they held 10 GiB more. What
PYTORCH_ALLOC_CONF says of them is left alone. Source: the documentation of torch, "CUDA semantics: memory management".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
_OTHERS = ("expandable_segments:False", "backend:cudaMallocAsync")


@dataclass(frozen=True, slots=True)
class MappedMemory:
    """Bytes of a GPU, in a segment of their own. pool: lives as long as they do; None without one."""

    data: Tensor
    pool: Any = None


def can_grow() -> bool:
    """Whether segments may grow: ROCm's don't, and the environment may forbid it."""
    given = ",".join(os.environ.get(name, "") for name in _NAMES).replace(" ", "")
    return torch.version.hip is None and not any(other in given for other in _OTHERS)


def let_segments_grow() -> None:
    """Lets the allocator's segments of this process grow, from its next tensor on."""
    if can_grow():
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def mapped_memory(size: int, device: torch.device) -> MappedMemory:
    """Bytes that other processes can map whatever the machine is: a segment that grows needs rights for that."""
    if not can_grow():
        return MappedMemory(torch.empty(size, dtype=torch.uint8, device=device))
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    try:
        pool = torch.cuda.MemPool()  # no other tensor's memory is taken for it
        with torch.cuda.use_mem_pool(pool, device):
            return MappedMemory(torch.empty(size, dtype=torch.uint8, device=device), pool)
    finally:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
