"""The machine under a benchmark: its hardware, whether it is idle, and what our process uses (Linux)."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
IDLE_BUSY_CORES = 0.15
"""Above that, other processes use the machine, and timings are not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a measured time depends on."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the machine was while we waited. busy_cores: of all processes; stolen by the host included."""

    busy_cores: float
    load_1min: float

    @property
    def is_idle(self) -> bool:
        return self.busy_cores <= IDLE_BUSY_CORES

    def __str__(self) -> str:
        return f"{self.busy_cores:.2f} cores busy, load {self.load_1min:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a process holds. children: all its descendants; containers: live ones, by the sandbox's own count."""

    memory_mib: float
    descriptors: int
    threads: int
    children: int
    containers: int


def describe_machine() -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        kernel=platform.release(),
        python=platform.python_version(),
    )


async def measure_load(seconds: float = 2.0) -> Load:
    """What other processes use while we wait."""
    before_s, began_s = machine_cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    busy = (machine_cpu_s() - before_s) / (time.monotonic() - began_s)
    return Load(busy_cores=busy, load_1min=os.getloadavg()[0])


def machine_cpu_s() -> float:
    """Seconds of CPU that the whole machine has spent so far, on whatever process."""
    fields = (PROC / "stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _, _, irq, soft_irq, steal = map(int, fields)
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def own_cpu_s() -> float:
    """Seconds of CPU that this process has spent so far, with the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def footprint(containers: int = 0) -> Footprint:
    """The memory of this process after a garbage collection."""
    gc.collect()
    pages = int((PROC / "self/statm").read_text().split()[1])
    return Footprint(
        memory_mib=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        descriptors=len(list((PROC / "self/fd").iterdir())) - 1,  # the one that lists them
        threads=threading.active_count(),
        children=len(descendants(os.getpid())),
        containers=containers,
    )


def descendants(pid: int) -> set[int]:
    """The processes below one."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level} - found
        found |= level
    return found


def _cpu_model() -> str:
    for line in (PROC / "cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()
