"""Finds containers whose owner is dead. An owner is a process on a host: which boot, pid, and when it started."""

from __future__ import annotations

import os
from pathlib import Path

NEVER_STARTED_S = 600.0  # longer than any start takes


def owner_label() -> str:
    """This process, as a label: host, pid, start."""
    return f"{_host()}:{os.getpid()}:{_start_time(os.getpid())}"


def is_orphan(label: str) -> bool:
    """Whether the owner ran on this host and is gone. What ran elsewhere can't be judged from here."""
    host, _, rest = label.partition(":")
    pid, _, began = rest.partition(":")
    if host != _host() or not pid.isdigit():
        return False
    return _start_time(int(pid)) != began.partition(":")[0]


def is_forgotten(state: str, age_s: float) -> bool:
    """Whether a container does nothing for anyone, whoever made it: a sandbox removes itself when it ends."""
    return state in ("created", "exited", "dead") and age_s > NEVER_STARTED_S


def _host() -> str:
    """Where a pid has a meaning. A name alone is not enough: engines are shared, and names are reused."""
    namespace = Path("/proc/self/ns/pid")
    return f"{os.uname().nodename}/{_boot()}/{namespace.stat().st_ino if namespace.exists() else 0}"


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is none. A pid is used again, this is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
