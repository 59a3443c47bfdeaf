"""What the processes of actors on this host are doing, seen from outside: one that hangs would not answer."""

from __future__ import annotations

from pathlib import Path

import psutil

from agentgym.actors.launchers import CHILD_MODULE
from agentgym.runs.liveness import BUSY_PERCENT, CONTROLLER, Vital, read_pulses, why_silent


class Vitals:
    """Measures the CPU time of each process from one reading to the next. logs: where heartbeats are; None: nowhere."""

    def __init__(self, logs: Path | None = None) -> None:
        self._logs = logs
        self._seen: dict[int, psutil.Process] = {}

    def read(self) -> list[Vital]:
        """The processes of actors: by their heartbeats, and those below this one that have none."""
        pulses = read_pulses(self._logs) if self._logs is not None else []
        known = [Vital(one.name, one.pid, why_silent(one)) for one in pulses if one.name != CONTROLLER]
        pids = {one.pid for one in pulses if one.is_here}
        return known + [vital for vital in self._below() if vital.pid not in pids]

    def _below(self) -> list[Vital]:
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
