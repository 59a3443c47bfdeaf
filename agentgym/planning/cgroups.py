"""The memory and the cores that a container leaves this process: the limits of its Linux control groups.

Sources: Documentation/admin-guide/cgroup-v2.rst (memory.max, cpu.max), cgroup-v1/memory.rst (memory.limit_in_bytes)
and scheduler/sched-bwc.rst (cpu.cfs_quota_us) of the Linux kernel; proc_pid_mountinfo(5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

SELF = Path("/proc/self")
_NO_LIMIT = 2**60  # bytes: version 1 has a number near 2**63 where there is none
_OCTAL = re.compile(r"\\([0-7]{3})")  # of mountinfo: a space is \040


def memory_limit(of: Path = SELF) -> float | None:
    """Bytes; None without a limit. of: the process's folder below /proc."""
    return _least(of, "memory", _memory_max)


def core_limit(of: Path = SELF) -> float | None:
    """Cores' worth of time; None without a limit."""
    return _least(of, "cpu", _cpu_max)


def _least(of: Path, controller: str, limit: Callable[[Path, bool], float | None]) -> float | None:
    """A group has what it and all above it leave."""
    found = [limit(folder, unified) for folder, unified in _groups(of, controller)]
    return min((value for value in found if value is not None), default=None)


def _groups(of: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The process's group of either version and those above it, as far as they are mounted; whether it is version 2."""
    mounts = [*_mounts(of)]
    for line in _lines(of / "cgroup"):
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and controller not in controllers.split(","):
            continue
        for root, place, kind, options in mounts:
            if kind != ("cgroup2" if unified else "cgroup") or not (unified or controller in options):
                continue
            below = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
            yield from ((place / folder, unified) for folder in [below, *below.parents])
            break


def _mounts(of: Path) -> Iterator[tuple[str, Path, str, list[str]]]:
    """Root in the file system, place, kind and the file system's own options."""
    for line in _lines(of / "mountinfo"):
        before, _, after = line.partition(" - ")
        fields, (kind, _, options, *_) = before.split(), [*after.split(), "", "", ""]
        root, place = (_OCTAL.sub(lambda match: chr(int(match[1], 8)), field) for field in fields[3:5])
        yield root, Path(place), kind, options.split(",")


def _memory_max(group: Path, unified: bool) -> float | None:
    text = _text(group / ("memory.max" if unified else "memory.limit_in_bytes"))
    return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def _cpu_max(group: Path, unified: bool) -> float | None:
    if unified:
        quota, _, period = _text(group / "cpu.max").partition(" ")
    else:
        quota, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _lines(file: Path) -> list[str]:
    return _text(file).splitlines()


def _text(file: Path) -> str:
    """Empty for a file that is not there, as on another system."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
