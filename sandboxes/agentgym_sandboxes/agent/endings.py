"""Why a call ended: the limit that it hit, what it used of it, and what was allowed."""

from __future__ import annotations

import os
import signal

from .claims import CLAIMS, claim_in_text
from .job import Hit, Job
from .limits import MIB
from .sweep import FOLDERS

_CGROUP = "/sys/fs/cgroup"


def hit_of(job: Job, reason: str, *, claimed: str | None = None) -> Hit | None:
    """The limit behind a reason; None when it is no limit's."""
    limits = job.limits
    if reason == "timeout":
        if job.cpu_s >= limits.cpu_s - 0.5 and job.wall_s < limits.wall_s:
            return Hit("cpu_s", job.cpu_s, limits.cpu_s)
        return Hit("wall_s", job.wall_s, limits.wall_s)
    if reason == "oom":
        return Hit("memory_mib", job.memory_kib / 1024, limits.memory_mib)
    if reason == "output_limit":
        for name in ("stdout", "stderr"):
            if job.num_bytes.get(name, 0) > limits.flood_bytes:
                return Hit("output_bytes", job.num_bytes[name], limits.flood_bytes)
        most = max(job.num_bytes.values(), default=0)
        return Hit("answer_mib", most / MIB, limits.answer_mib)
    if reason == "disk_limit":
        full = full_disk()
        if claimed == "file" or full is None:
            return Hit("file_mib", limits.file_mib, limits.file_mib) if claimed == "file" else disk_size()
        return full
    if reason == "process_limit":
        return Hit("processes", limits.processes, limits.processes)
    return None


def reason_of_failure(
    exit_status: int, claimed: str | None, stderr: bytes = b"", *, alone: bool
) -> tuple[str | None, str | None]:
    """The limit's reason that a failed call ended by itself for, if any, and the claim that names its resource.

    alone: nothing else uses the container, so that a full disk is the call's doing. stderr: of a command, which
    has no other way to say what failed.
    """
    signals = (signal.SIGXFSZ, 128 + signal.SIGXFSZ)  # its own, or that of a command of a shell
    if exit_status in (signals[0], signals[1] << 8):
        return "disk_limit", "file"
    claimed = claimed or claim_in_text(stderr)
    if claimed is not None:
        return CLAIMS[claimed], claimed
    if alone and full_disk() is not None:
        return "disk_limit", "disk"
    return None, None


def full_disk() -> Hit | None:
    """The folder for files that has no room, or no inode, left."""
    for folder in filter(os.path.isdir, FOLDERS):
        info = os.statvfs(folder)
        if info.f_blocks and not info.f_bfree:
            size = info.f_blocks * info.f_frsize / MIB
            return Hit("disk_mib", size, size)
        if info.f_files and not info.f_ffree:
            return Hit("files", info.f_files, info.f_files)
    return None


def disk_size() -> Hit:
    """How full the folder for work is now: a program that removed its files again says that it was full."""
    info = os.statvfs(next(filter(os.path.isdir, FOLDERS), "/"))
    size = info.f_blocks * info.f_frsize / MIB
    return Hit("disk_mib", size, size)


def container_memory(job: Job) -> Hit:
    """When all of a container's processes together were too large: its memory, at its highest."""
    for peak, most in (
        ("memory.peak", "memory.max"),
        ("memory/memory.max_usage_in_bytes", "memory/memory.limit_in_bytes"),
    ):
        try:
            return Hit("memory_mib", _number(peak) / MIB, _number(most) / MIB)
        except (OSError, ValueError):
            continue
    return Hit("memory_mib", job.memory_kib / 1024, job.limits.memory_mib)


def others_fill_disk(num_calls: int) -> bool:
    """Whether one folder for files is fuller than so many calls may make it, if one more has an equal share."""
    share = num_calls / (num_calls + 1)
    for folder in filter(os.path.isdir, FOLDERS):
        info = os.statvfs(folder)
        if info.f_blocks - info.f_bfree > share * info.f_blocks or info.f_files - info.f_ffree > share * info.f_files:
            return True
    return False


def memory_left_mib() -> float:
    """What a call may still take of the container's memory; unbounded where the kernel does not report it."""
    for folder, current, most in (
        ("", "memory.current", "memory.max"),
        ("memory/", "memory.usage_in_bytes", "memory.limit_in_bytes"),
    ):
        try:
            used = _number(folder + current)
            with open(f"{_CGROUP}/{folder}memory.stat") as file:
                counts = dict(line.split() for line in file)
            cached = sum(int(counts.get(name, 0)) for name in ("active_file", "inactive_file"))
            return (_number(folder + most) - used + cached) / MIB
        except (OSError, ValueError):
            continue
    return float("inf")


def num_connections() -> int:
    """TCP sockets that are connected or listen, in all of the container."""
    number = 0
    for path in ("/proc/net/sockstat", "/proc/net/sockstat6"):
        try:
            with open(path) as file:
                lines = [line.split() for line in file]
        except OSError:
            continue
        number += sum(int(words[2]) for words in lines if words[0] in ("TCP:", "TCP6:"))
    return number


def count_oom_kills() -> int:
    """How many processes of this container the kernel killed for memory so far (control groups v2, v1)."""
    for path in ("memory.events", "memory/memory.oom_control"):
        try:
            with open(f"{_CGROUP}/{path}") as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except OSError:
            continue
    return 0


def _number(path: str) -> int:
    with open(f"{_CGROUP}/{path}") as file:
        return int(file.read())
