"""What the processes of actors on this host are doing, seen from outside: one that hangs would not answer."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from agentgym.actors.launchers import CHILD_MODULE

BUSY_PERCENT = 5.0  # of one core


@dataclass(frozen=True, slots=True)
class Vital:
    """One process. silent: why it is not at work; empty when it computes."""

    name: str
    pid: int
    silent: str


class Vitals:
    """Measures the CPU time of each process from one reading to the next."""

    def __init__(self) -> None:
        self._seen: dict[int, psutil.Process] = {}

    def read(self) -> list[Vital]:
        """The processes of actors below this one, those that are still starting included."""
        children = {child.pid: self._seen.get(child.pid, child) for child in psutil.Process().children(recursive=True)}
        self._seen = children
        vitals = []
        for child in children.values():
            try:
                words, status, percent = child.cmdline(), child.status(), child.cpu_percent()
            except psutil.Error:
                continue  # it has just ended
            if CHILD_MODULE in words and "--host" not in words:
                name = words[words.index("--name") + 1].partition("#")[0]
                stopped = status in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
                why = "stopped by a signal" if stopped else "using no CPU" if percent < BUSY_PERCENT else ""
                vitals.append(Vital(name, child.pid, why))
        return vitals
