"""The machine that a run is planned for: this one, or one that is only described."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import UserError
from agentgym.models.device import visible_gpus
from agentgym.planning.cgroups import SELF, core_limit, memory_limit

GIB = 2**30
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """free_gib: when it was looked at; None where that is not known. uuid: empty on paper."""

    name: str
    memory_gib: float
    free_gib: float | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """memory_gib, shared_memory_gib: of the host and what is free in /dev/shm; None where that is not known."""

    gpus: tuple[Gpu, ...] = ()
    cores: int = 1
    memory_gib: float | None = None
    shared_memory_gib: float | None = None

    def __str__(self) -> str:
        if not self.gpus:
            return f"{self.cores} core(s), no GPU"
        kinds = dict.fromkeys(f"{gpu.name}, {gpu.memory_gib:.0f} GiB" for gpu in self.gpus)
        return f"{len(self.gpus)} GPU(s) ({'; '.join(kinds)})"


def host_cores(of: Path = SELF) -> int:
    """The cores that this process may use, by the machine, its affinity and its container's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = core_limit(of)
    return cores if limit is None else max(1, min(cores, int(limit)))


def host_memory_gib(of: Path = SELF) -> float:
    """Memory of the machine, or what a container leaves this process."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory, memory_limit(of) or memory) / GIB


def this_machine() -> Machine:
    """What this process sees of it."""
    return Machine(
        gpus=tuple(
            Gpu(
                name=gpu.name,
                memory_gib=gpu.memory / GIB,
                free_gib=None if gpu.free is None else gpu.free / GIB,
                uuid=gpu.uuid,
            )
            for gpu in visible_gpus()
        ),
        cores=host_cores(),
        memory_gib=host_memory_gib(),
        shared_memory_gib=shutil.disk_usage(SHARED_MEMORY).free / GIB if SHARED_MEMORY.is_dir() else None,
    )


def machine_of(gpus: int | None, gpu_memory_gib: float | None) -> Machine:
    """The machine that --gpus and --gpu-memory describe, or this one without them. Raises UserError."""
    if gpus is None:
        if gpu_memory_gib is not None:
            raise UserError("--gpu-memory is of each GPU: say with --gpus N how many there are")
        return this_machine()
    if gpus < 0 or (gpu_memory_gib is not None and gpu_memory_gib <= 0):
        raise UserError(f"--gpus is {gpus} and --gpu-memory {gpu_memory_gib}: give at least 0, and more than 0 GiB")
    here = this_machine()
    if gpu_memory_gib is None and gpus > len(here.gpus):
        raise UserError(
            f"--gpus is {gpus} and this machine has {len(here.gpus)} GPU(s): give --gpu-memory GIB, of each"
        )
    if gpu_memory_gib is None:
        return Machine(gpus=here.gpus[:gpus], cores=here.cores, memory_gib=here.memory_gib)
    return Machine(gpus=(Gpu(name="planned", memory_gib=gpu_memory_gib),) * gpus, cores=here.cores)
