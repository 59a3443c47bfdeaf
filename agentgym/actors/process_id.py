"""Which process a number means: it counts on one host, and until the process has ended."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process, told apart from those with the same number: later ones, and those of other hosts."""

    pid: int
    start_ticks: int  # since boot
    namespace: str  # of process ids: elsewhere the number means another process

    @classmethod
    def of(cls, pid: int) -> Self:
        """A process of this namespace. Raises ProcessLookupError."""
        ticks = _start_ticks(pid)
        if ticks is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid=pid, start_ticks=ticks, namespace=_namespace())

    @property
    def is_here(self) -> bool:
        """Whether its number means it in this process, too."""
        return self.namespace == _namespace()

    @property
    def is_gone(self) -> bool:
        """False when in doubt."""
        return self.is_here and _start_ticks(self.pid) != self.start_ticks

    def open(self) -> int:
        """A pidfd, for a process of this namespace. Raises ProcessLookupError when it has ended."""
        assert self.is_here, self
        descriptor = os.pidfd_open(self.pid)
        if self.is_gone:  # the number may belong to another one by now
            os.close(descriptor)
            raise ProcessLookupError(f"process {self.pid} has ended")
        return descriptor


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] in "ZX" else int(after_name[19])


@cache
def _namespace() -> str:
    """The host, its boot and the namespace in it: two hosts may have one name, all have the same first namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} unknown"
