"""Finds containers whose owner is dead. An owner is a process: host name, pid, and when it started."""

from __future__ import annotations

import os
from pathlib import Path


def owner_label() -> str:
    """This process, as a label."""
    return f"{os.uname().nodename}:{os.getpid()}:{_start_time(os.getpid())}"


def is_orphan(label: str) -> bool:
    """Whether the owner ran on this host and is gone. What ran elsewhere can't be judged from here."""
    node, _, rest = label.partition(":")
    pid, _, began = rest.partition(":")
    if node != os.uname().nodename or not pid.isdigit():
        return False
    return _start_time(int(pid)) != began


def _start_time(pid: int) -> str:
    """When a process started, in ticks since boot; empty when there is none. A pid is used again, this is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
