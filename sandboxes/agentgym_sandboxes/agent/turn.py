"""One run or command of a session: watched, stopped at its limits, with the processes that it started."""

from __future__ import annotations

import functools
import signal
import time
from typing import Callable

from . import endings, frames
from .job import Hit, Job
from .processes import Process, processes_of, read_process
from .reactor import Reactor
from .sweep import MIN_KILLS

GRACE_S = 1.0  # from the interrupt to the kill
KILL_PATIENCE_S = 1.0  # then all of the session's processes go: these outran us
LOOK_EVERY_S = 0.25
PUMP_PAUSE_S = 0.002
_KILL_AGAIN_S = 0.003


class Turn:
    """interpreter_pid: of the session's Python, 0 when there is none; it is older than the call."""

    def __init__(
        self,
        reactor: Reactor,
        job: Job,
        uid: int,
        interpreter_pid: int,
        *,
        is_exec: bool,
        finish: Callable[[Turn], None],
    ) -> None:
        self.job = job
        self.is_exec = is_exec
        self.interpreter_pid = interpreter_pid
        self.token = ""  # names the run to the interpreter, and only there
        self.exit_status: int | None = None
        self.claimed: str | None = None
        self.reason: str | None = None
        self.state_lost = False
        self.ended = False  # the snippet or the command itself
        self._reactor = reactor
        self._uid = uid
        self._finish = finish
        self._finished = False
        self._hit: Hit | None = None
        self._before: set[tuple[int, int]] = set()
        self._cpu_before_s = 0.0
        self._num_oom_kills = endings.count_oom_kills()
        self._killing_since_s: float | None = None
        self._num_kills = 0

    def begin(self) -> None:
        """Note what is older than the call."""
        self._before = {process.key for process in processes_of(self._uid).values()}
        found = read_process(self.interpreter_pid) if self.interpreter_pid else None
        self._cpu_before_s = found.cpu_s if found is not None else 0.0
        self._look()

    def watch(self, name: str) -> None:
        """Read a pipe of its output as it comes."""
        fd = self.job.fds.get(name)
        if fd is not None and not self._finished:
            self._reactor.watch(fd, functools.partial(self._pump, name))

    def _pump(self, name: str) -> None:
        fd = self.job.fds[name]
        self.job.pump(name)
        self._reactor.unwatch(fd)
        if name in self.job.fds:  # each line is a write: taken one by one, they would cost a wake-up each
            self._reactor.call_at(time.monotonic() + PUMP_PAUSE_S, functools.partial(self.watch, name))
        if self.job.reason is not None:
            self.stop(self.job.reason)

    def stop(self, reason: str) -> None:
        """Interrupt it, and kill it if that does not end it. The first reason is kept."""
        if self.reason is not None or self.ended:
            return
        self.reason = reason
        self.job.cpu_s = max(self.job.cpu_s, self._cpu_s())
        self._hit = endings.hit_of(self.job, reason)
        self._signal(signal.SIGINT)
        self._reactor.call_at(time.monotonic() + GRACE_S, self._kill)

    def child_ended(self) -> None:
        """The snippet or the command is over. One that was stopped takes along what it started."""
        if self.ended:
            return
        self.job.cpu_s = max(self.job.cpu_s, self._cpu_s())
        self.ended = True
        if self.reason is None or self.reason == "no_process":
            self._end()
        else:
            self._kill()

    def ending(self) -> frames.Header:
        """The header of the answer."""
        reason, hit = self.reason, self._hit
        failed = self.exit_status != 0
        if reason is None and failed and endings.count_oom_kills() > self._num_oom_kills:
            reason, hit = "oom", endings.container_memory(self.job)
        elif reason is None and failed and self.exit_status is not None:
            stderr = bytes(self.job.output["stderr"]) if self.is_exec else b""
            reason, claimed = endings.reason_of_failure(self.exit_status, self.claimed, stderr, alone=True)
            hit = endings.hit_of(self.job, reason, claimed=claimed) if reason is not None else None
        if self.exit_status is not None:
            self.job.exits["program"] = self.exit_status
        return {**self.job.header(reason, hit), "state_lost": self.state_lost}

    def _look(self) -> None:
        """Now and then: its time, wall and CPU, and its memory."""
        if self.ended or self.reason is not None:
            return
        now_s = time.monotonic()
        self.job.cpu_s = max(self.job.cpu_s, self._cpu_s())
        if now_s >= self.job.deadline_s or self.job.cpu_s >= self.job.limits.cpu_s:
            self.stop("timeout")
            return
        self._reactor.call_at(min(self.job.deadline_s, now_s + LOOK_EVERY_S), self._look)

    def _cpu_s(self) -> float:
        """CPU time of what it started and of the interpreter since the call began."""
        mine = self._mine()
        self.job.memory_kib = max([self.job.memory_kib, *(int(p.memory_mib * 1024) for p in mine)])
        spent_s = sum(process.cpu_s for process in mine)
        return spent_s - (self._cpu_before_s if any(p.pid == self.interpreter_pid for p in mine) else 0.0)

    def _mine(self) -> list[Process]:
        """What the call started, and for a run the interpreter; not what older processes started meanwhile."""
        found = processes_of(self._uid)
        mine = []
        for process in found.values():
            if process.pid == self.interpreter_pid:
                if not self.is_exec:
                    mine.append(process)
            elif process.key not in self._before and not self._has_older_parent(process, found):
                mine.append(process)
        return mine

    def _has_older_parent(self, process: Process, found: dict[int, Process]) -> bool:
        for _ in found:
            parent = found.get(process.parent)
            if parent is None or (parent.pid == self.interpreter_pid and not self.is_exec):
                return False
            if parent.key in self._before:
                return True
            process = parent
        return False

    def _signal(self, number: int, *, spare_interpreter: bool = False) -> int:
        """Signal the call's processes; how many there were."""
        mine = self._mine()
        if spare_interpreter:
            mine = [process for process in mine if process.pid != self.interpreter_pid]
        for process in mine:
            self._reactor.sweeper.signal(self._uid, process.pid, number)
        return len(mine)

    def _kill(self) -> None:
        """Kills until nothing of it is left; an interpreter that finished in time stays."""
        if self._finished:
            return
        now_s = time.monotonic()
        if self._killing_since_s is None:
            self._killing_since_s = now_s
        if now_s > self._killing_since_s + KILL_PATIENCE_S:
            self._reactor.sweeper.kill(self._uid)
        self._num_kills += 1
        num_left = self._signal(signal.SIGKILL, spare_interpreter=self.ended and not self.state_lost)
        if not num_left and self.ended:
            self._end()
        elif now_s > self._killing_since_s + 3 * KILL_PATIENCE_S and self._num_kills > MIN_KILLS:
            self.reason = "dirty"
            self._end()
        else:
            self._reactor.call_at(now_s + _KILL_AGAIN_S, self._kill)

    def _end(self) -> None:
        self._finished = True
        self._finish(self)
