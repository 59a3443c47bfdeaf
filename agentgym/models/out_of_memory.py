"""Out of memory: recognised among other errors, and reported with who holds what."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from agentgym.commands.text import memory
from agentgym.errors import InfraError
from agentgym.models.device import gpu_identity
from agentgym.models.gpu_memory import holders_by_gpu, holders_of_host, process_name

_GIB = 2**30
_MOST = 8  # processes that are listed
_GPU = re.compile(
    r"\b(?:CUDA|HIP)\b.*out of memory|(?:CUBLAS|CUDNN|HIPBLAS)_STATUS_ALLOC_FAILED", re.IGNORECASE | re.DOTALL
)
_HOST = re.compile(r"DefaultCPUAllocator: (?:can't|not enough memory|out of memory)")
_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+) (\w+)")


class OutOfMemory(InfraError):
    """A process needed more memory than is left. The same work would need it again, so nothing is retried."""


def out_of_memory(error: BaseException, lower: str) -> OutOfMemory | None:
    """What to raise instead, where memory is what the error is about; else None.

    Call it where the error is caught: what its frames hold is still counted. lower: the fields that take less.
    """
    seen: BaseException | None = error
    while seen is not None:
        if is_gpus(seen) or isinstance(seen, MemoryError) or _HOST.search(str(seen)):
            lines = [_gpu_line(seen), *gpu_lines()] if is_gpus(seen) else [_host_line(seen), *_host_lines()]
            lines.append(f"{lower}; a run that has saved a checkpoint goes on with --resume and the changed fields")
            return OutOfMemory("\n  ".join(lines))
        seen = seen.__cause__ or seen.__context__
    return None


def is_gpus(error: BaseException) -> bool:
    """torch's allocator raises a class of its own; libraries that allocate beside it only say so."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch.OutOfMemoryError) or bool(_GPU.search(str(error)))


def gpu_lines() -> Iterator[str]:
    """What every process holds of this process's GPU, or of every GPU before torch has chosen one here."""
    holders, torch = holders_by_gpu(), sys.modules.get("torch")
    uuids = list(holders)
    if torch is not None and torch.cuda.is_initialized():
        uuids = [gpu_identity(torch.cuda.current_device())]
        stats = torch.cuda.memory_stats()
        tensors, most, reserved = (
            stats.get(f"{name}_bytes.all.{when}", 0) / _GIB
            for name, when in (("allocated", "current"), ("allocated", "peak"), ("reserved", "current"))
        )
        sizes = [memory(size) for size in (tensors, most, reserved)]
        yield "tensors of this process: {}, at most {}; torch reserves {} for them".format(*sizes)
    for uuid in uuids:
        if found := sorted(holders.get(uuid, ()), key=lambda holder: -(holder.size or 0))[:_MOST]:
            yield f"held of GPU-{uuid[:8]}: {', '.join(map(str, found))}"


def _gpu_line(error: BaseException) -> str:
    torch, where = sys.modules["torch"], "the GPU"
    if torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        where = f"GPU {torch.cuda.current_device()} ({memory(free / _GIB)} of {memory(total / _GIB)} free)"
    return f"{_who()} is out of memory on {where}{_tried(error)}"


def _host_line(error: BaseException) -> str:
    sizes = _meminfo()
    left = ""
    if {"MemAvailable", "MemTotal"} <= sizes.keys():
        left = f" ({memory(sizes['MemAvailable'] / _GIB)} of {memory(sizes['MemTotal'] / _GIB)} available)"
    return f"{_who()} is out of the host's memory{left}{_tried(error)}"


def _host_lines() -> Iterator[str]:
    if found := holders_of_host()[:_MOST]:
        yield f"held by: {', '.join(map(str, found))}"


def _who() -> str:
    """The process; its log's name ends with its rank."""
    return f"{process_name(os.getpid())} (rank {os.environ.get('RANK', '0')}, process {os.getpid()})"


def _tried(error: BaseException) -> str:
    found = _TRIED.search(str(error))
    if found is None:
        return f": {' '.join(str(error).split())[:200]}"
    size = memory(int(found[1]) / _GIB) if found[2] == "bytes" else f"{found[1]} {found[2]}"
    return f": it tried to allocate {size}"


def _meminfo() -> dict[str, int]:
    """Bytes, as /proc/meminfo names them; nothing on a system without it."""
    path = Path("/proc/meminfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
