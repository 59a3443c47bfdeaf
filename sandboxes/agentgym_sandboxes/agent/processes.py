"""The processes of a uid, read from /proc: who they are, whose children, what time they took."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)


EVERYONE = -1
"""In place of a uid: all processes of the container but the agent's own."""
OURS = {1}
"""The pids of the agent's processes that last."""


class Process(NamedTuple):
    """A living process. started: in ticks since boot; with the pid it names a process for good."""

    pid: int
    started: int
    parent: int
    cpu_s: float  # with that of the children it has waited for
    memory_mib: float

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.started


def processes_of(uid: int) -> dict[int, Process]:
    """All that run as `uid`, or EVERYONE, by their pid; without zombies."""
    return {process.pid: process for process in _all(uid)}


def _all(uid: int) -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit() and (int(name) not in OURS if uid == EVERYONE else _uid(name) == uid):
            process = read_process(int(name))
            if process is not None:
                yield process


def read_process(pid: int) -> Process | None:
    """None when it does not exist, or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # its name may hold anything
    if fields[0] in (b"Z", b"X"):
        return None
    cpu_s = sum(int(ticks) for ticks in fields[11:15]) / _TICKS
    return Process(pid, int(fields[19]), int(fields[1]), cpu_s, int(fields[21]) * _PAGE_MIB)


def _uid(name: str) -> int | None:
    """The real uid."""
    try:
        with open(f"/proc/{name}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Uid:"):
                    return int(line.split()[1])
    except OSError:
        pass
    return None
