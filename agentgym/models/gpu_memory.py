"""Memory use of GPUs and of the host by process, as the driver and the kernel report it."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentgym.commands.text import memory

_TIMEOUT_S = 30.0
_MIB = 2**20
_GIB = 2**30
_PROC = Path("/proc")
_PROGRAM = """
import torch
for index in range(torch.cuda.device_count()):
    print(torch.cuda.get_device_properties(index).uuid, torch.cuda.mem_get_info(index)[0], sep=",")
"""


class Holder(NamedTuple):
    """A process and the bytes that it holds; None where the driver does not say. name: of the process's log, if any."""

    pid: int
    name: str
    size: int | None

    def __str__(self) -> str:
        size = "an unknown amount" if self.size is None else memory(self.size / _GIB)
        return f"{self.name} (process {self.pid}) {size}"


def free_by_gpu() -> dict[str, int]:
    """Free bytes by the GPU's UUID, without "GPU-". Without nvidia-smi a process of its own asks torch.

    This process must not ask torch itself: the context that this creates would hold some of the memory.
    """
    found = {row[0].removeprefix("GPU-"): _bytes(row[1]) for row in _nvidia_smi("--query-gpu=uuid,memory.free")}
    if not found:
        rows = _rows([sys.executable, "-c", _PROGRAM])
        found = {row[0].removeprefix("GPU-"): int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
    return {uuid: size for uuid, size in found.items() if size is not None}


def holders_by_gpu() -> dict[str, list[Holder]]:
    """The processes on each GPU that is in use, by UUID; in a container the driver may hide those of others."""
    found: dict[str, list[Holder]] = {}
    for row in _nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory"):
        if len(row) == 3 and row[1].isdecimal():
            holder = Holder(pid=int(row[1]), name=process_name(int(row[1])), size=_bytes(row[2]))
            found.setdefault(row[0].removeprefix("GPU-"), []).append(holder)
    return found


def process_name(pid: int) -> str:
    """What its log is called, as trainer.0, which processes that it starts share; else what the kernel calls it."""
    with contextlib.suppress(OSError):
        log = _log_of(pid)
        return log.stem if log.suffix == ".log" else (_PROC / str(pid) / "comm").read_text().strip()
    return "another program"


def holders_of_host() -> list[Holder]:
    """This process, the one that started it, and those that log into the same folder: what they hold of the host."""
    with contextlib.suppress(OSError):
        return sorted(_of_run(), key=lambda holder: -(holder.size or 0))
    return []


def _of_run() -> Iterator[Holder]:
    own, log = os.getpid(), _log_of(os.getpid())
    for entry in _PROC.glob("[0-9]*"):
        pid = int(entry.name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            other = _log_of(pid)
            if pid in (own, os.getppid()) or (other.suffix == ".log" and other.parent == log.parent):
                pages = int((entry / "statm").read_text().split()[1])
                yield Holder(pid=pid, name=process_name(pid), size=pages * os.sysconf("SC_PAGE_SIZE"))


def _log_of(pid: int) -> Path:
    return (_PROC / str(pid) / "fd" / "2").readlink()


def _nvidia_smi(query: str) -> list[list[str]]:
    """The rows of its answer; none without the tool or the driver."""
    tool = shutil.which("nvidia-smi")
    return [] if tool is None else _rows([tool, query, "--format=csv,noheader,nounits"])


def _rows(command: list[str]) -> list[list[str]]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(done.stdout.splitlines()) if row]


def _bytes(mebibytes: str) -> int | None:
    """None for what is not reported, as "[N/A]"."""
    return int(mebibytes) * _MIB if mebibytes.isdecimal() else None
