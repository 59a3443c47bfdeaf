"""The one-shot calls under way: each under uids of its own, ended at its limits, swept after, answered."""

from __future__ import annotations

import errno
import functools
import math
import os
import signal
import socket
import time
from typing import cast

from . import frames
from .claims import claim_in
from .endings import count_oom_kills, hit_of, memory_left_mib, others_fill_disk, reason_of_failure
from .fairness import FIRST_NICE, count_running, nice_of
from .job import Job
from .limits import ChildLimits
from .processes import processes_of
from .reactor import Reactor
from .sharing import SHARED
from .sweep import MIN_KILLS, Held

SWEEP_PATIENCE_S = 3.0  # what can't be killed or wiped by then makes the container dirty
BALANCE_EVERY_S = 0.2
NO_ROOM = os.strerror(errno.ENOSPC).encode()
CROWDED_BELOW = 0.9  # of its memory: a call killed with less had too little room beside others


class Calls:
    """Begun by the host's frames; `advance` is called whenever something may have happened."""

    def __init__(self, reactor: Reactor) -> None:
        self.jobs: dict[int, Job] = {}
        self._reactor = reactor
        self._sweeper = reactor.sweeper
        self._num_oom_kills = count_oom_kills()
        self._nices: dict[int, int] = {}
        self._balances = False
        self._ended_s = 0.0  # when a call last ended, and what it held became free
        self._held: set[int] = set()  # uids of calls that ended, whose folders a call beside them holds on to

    @property
    def next_s(self) -> float:
        """When `advance` has something to do: at once while a call ends, for no event reports the end of a uid."""
        return min((0.0 if job.ending else job.deadline_s for job in self.jobs.values()), default=math.inf)

    def advance(self) -> None:
        for job in list(self.jobs.values()):
            self._advance(job)

    def cancel(self, frame: frames.Frame) -> None:
        job = self.jobs.get(cast(int, frame.header["id"]))
        if job is not None:
            self._end(job, "cancelled")

    def begin(self, op: str, frame: frames.Frame) -> None:
        number = cast(int, frame.header["id"])
        limits = ChildLimits.of(cast(dict[str, float], frame.header["limits"]))
        if not self.jobs:
            self._num_oom_kills = count_oom_kills()  # a program may have outlived the death of its child
        judged = len(frame.blobs) > 1 and op == "grade"
        alone = bool(frame.header.get("alone"))
        uids = [self._reactor.take_uid() for _ in range(2 if judged else 1)]
        job = self.jobs[number] = Job(number, limits, uids)
        if len(self.jobs) > 1 and not self._balances:
            self._balances = True
            self._reactor.call_at(time.monotonic() + BALANCE_EVERY_S, self._balance)
        payload = frames.memory_file(frame.blobs[0])
        if op == "program":
            fds = [payload, self._pipe(job, "notes"), frames.memory_file(frame.blobs[1])]
            self._spawn(job, "program", uids[0], [*fds, self._pipe(job, "stdout"), self._pipe(job, "stderr")])
        elif judged:
            solution, tests = socket.socketpair()
            self._spawn(job, "serve", uids[0], [payload, self._pipe(job, "answers"), solution.detach()])
            fds = [frames.memory_file(frame.blobs[1]), self._pipe(job, "verdict"), tests.detach()]
            self._spawn(job, "judge", uids[1], fds, alone=alone)
        else:
            self._spawn(job, "serve", uids[0], [payload, self._pipe(job, "answers")])

    def _pipe(self, job: Job, name: str) -> int:
        write = job.pipe(name)
        self._reactor.watch(job.fds[name], functools.partial(self._pump, job, name))
        return write

    def _spawn(self, job: Job, op: str, uid: int, fds: list[int], *, alone: bool = False) -> None:
        job.live += 1
        order: dict[str, object] = {"op": op, "uid": uid, "limits": job.limits._asdict(), "alone": alone}
        self._reactor.spawn(order, fds, functools.partial(self._ended, job, op))

    def _ended(self, job: Job, op: str, end: dict[str, float]) -> None:
        job.live -= 1
        if "fork_error" in end:
            self._end(job, "crowded" if end["fork_error"] in (errno.ENOSPC, errno.EDQUOT) else "no_process")
            return
        status = int(end["status"])
        job.exits[op] = status
        job.cpu_s += end["cpu_s"]
        job.memory_kib = max(job.memory_kib, int(end["memory_kib"]))
        if job.ending:
            return
        reason = self._why_failed(job, op, status) if status else None
        if reason is not None:
            self._end(job, reason)
        elif not job.live or op == "judge":
            self._end(job, None)

    def _why_failed(self, job: Job, op: str, status: int) -> str | None:
        """Its CPU time, the container's memory, another limit that a program ran into, or its own doing."""
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if number in (signal.SIGKILL, signal.SIGXCPU) and job.cpu_s >= job.limits.cpu_s - 0.5:
            return "timeout"
        if self._memory_ended(op, number):
            job.beside = len(self.jobs) - 1 if self._had_used_less(job) else 0
            return "oom"
        if op == "program":
            self._pump(job, "notes")
            claimed = claim_in(bytes(job.output["notes"]))
            reason, claimed = reason_of_failure(status, claimed, alone=False)
            if reason is not None:
                job.hit = hit_of(job, reason, claimed=claimed)
                return reason
        if op == "judge" and os.WIFEXITED(status) and os.WEXITSTATUS(status) == SHARED:
            return "shared"
        return "signal" if number is not None else None

    def _memory_ended(self, op: str, number: int | None) -> bool:
        """Whether the kernel killed for memory: this process, or one of a program that is alone.

        The kernel counts only how often it did, so each of its kills is laid to one process that was killed.
        """
        num_oom_kills = count_oom_kills()
        if num_oom_kills == self._num_oom_kills:
            return False
        if number == signal.SIGKILL:
            self._num_oom_kills += 1
            return True
        if op == "program" and len(self.jobs) == 1:
            self._num_oom_kills = num_oom_kills
            return True
        return False

    def _had_used_less(self, job: Job) -> bool:
        """Whether a call that was killed for memory had used less than it may, as far as its processes show."""
        living = sum(p.memory_mib for uid in job.uids for p in processes_of(uid).values())
        return living + job.memory_kib / 1024 < CROWDED_BELOW * job.limits.memory_mib

    def _balance(self) -> None:
        """Now and then, while there are several: one with many processes must not make the others late."""
        self._balances = len(self.jobs) > 1
        if not self._balances:
            return
        for uid, num_running in count_running([uid for job in self.jobs.values() for uid in job.uids]).items():
            nice = nice_of(num_running)
            if nice > self._nices.get(uid, FIRST_NICE):
                self._nices[uid] = nice
                self._sweeper.yield_more(uid, nice)
        self._reactor.call_at(time.monotonic() + BALANCE_EVERY_S, self._balance)

    def _was_crowded(self, job: Job) -> bool:
        """Whether others had taken the room that a call may use: measured when it is gone and can hide nothing."""
        if job.reason == "oom":
            return job.beside > 0 and memory_left_mib() < CROWDED_BELOW * job.limits.memory_mib
        if job.reason is None:  # a solution's own error says it
            lacked_disk = any(NO_ROOM in job.output.get(name, b"") for name in ("answers", "verdict"))
        else:
            lacked_disk = job.reason == "disk_limit" and job.hit is not None and job.hit.limit != "file_mib"
        num_others = len(self.jobs) - 1
        return lacked_disk and (job.began_s < self._ended_s or (num_others > 0 and others_fill_disk(num_others)))

    def _wipe(self, job: Job) -> bool:
        """Whether no file of a call is left, but in folders that calls beside it hold on to, which wait for those."""
        neighbours = {uid for other in self.jobs.values() if other is not job for uid in other.uids}
        for uid in {*job.uids, *self._held} - neighbours:
            self._held.discard(uid)
            try:
                if not self._sweeper.wipe(uid, neighbours):
                    return False
            except Held:
                self._held.add(uid)
        return True

    def _pump(self, job: Job, name: str) -> None:
        fd = job.fds.get(name)
        job.pump(name)
        if name not in job.fds and fd is not None:
            self._reactor.unwatch(fd)
        if job.reason is not None:
            self._end(job, job.reason)

    def _end(self, job: Job, reason: str | None) -> None:
        """Start to end a call; the first reason is kept."""
        job.reason = job.reason or reason
        if job.reason is not None and job.hit is None:
            job.hit = hit_of(job, job.reason)
        if not job.ending:
            job.ending = True
            job.deadline_s = time.monotonic() + SWEEP_PATIENCE_S

    def _advance(self, job: Job) -> None:
        """End what is over its time; finish what has ended and is swept."""
        late = time.monotonic() >= job.deadline_s
        if not job.ending:
            if not late:
                return
            self._end(job, "timeout")
            late = False
        busy = [uid for uid in job.uids if self._sweeper.has_processes(uid)]
        if busy and not job.swept:
            job.swept, job.leaked = True, not job.live
        for uid in busy:
            self._sweeper.kill(uid)
        job.num_kills += 1
        if (busy or job.live) and not (late and job.num_kills > MIN_KILLS):
            return
        job.drain(self._reactor.unwatch)
        if busy or job.live or not self._wipe(job):
            job.reason = "dirty"
        elif self._was_crowded(job):
            job.reason, job.hit = "crowded", None
        self._finish(job)

    def _finish(self, job: Job) -> None:
        del self.jobs[job.number]
        self._ended_s = time.monotonic()
        if job.reason != "dirty":
            for uid in job.uids:
                self._nices.pop(uid, None)
                self._reactor.give_uid(uid)
        header = job.header(job.reason, job.hit)
        if job.leaked:
            header["leaked"] = True
        self._reactor.send(header, list(job.output.values()))
