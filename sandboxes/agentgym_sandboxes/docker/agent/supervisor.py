"""PID 1: takes calls from the host, has them forked, ends them at their limits, sweeps after them, answers."""

from __future__ import annotations

import array
import collections
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from typing import NoReturn, cast

from . import frames
from .job import Job
from .limits import ChildLimits
from .sweep import Sweeper

STDIN_FD, STDOUT_FD = 0, 1
SWEEP_PATIENCE_S = 3.0  # what can't be killed or wiped by then makes the container dirty
IDLE_S = 600.0  # the host pings every few seconds: it is gone
ZYGOTE_GONE = 70


class Supervisor:
    """Serves calls until its standard input ends. uids: more than the calls that run at a time."""

    def __init__(self, zygote: socket.socket, uids: Sequence[int]) -> None:
        self._zygote = zygote
        self._uids: collections.deque[int] = collections.deque(uids)  # in turn, so that a uid rests after use
        self._jobs: dict[int, Job] = {}
        self._children: dict[str, tuple[Job, str]] = {}
        self._readers: dict[int, tuple[Job, str]] = {}
        self._frames = frames.FrameReader()
        self._sweeper = Sweeper()
        self._num_oom_kills = count_oom_kills()
        self._poll = select.poll()
        self._poll.register(STDIN_FD, select.POLLIN)
        self._poll.register(zygote, select.POLLIN)

    def serve(self) -> NoReturn:
        """The loop. Ends the process, and so the container, when the host or the zygote is gone."""
        while True:
            for job in list(self._jobs.values()):
                self._advance(job)
            events = self._poll.poll(self._patience_ms())
            if not events and not self._jobs:
                os._exit(0)  # idle for too long
            for fd, _ in events:
                if fd == STDIN_FD:
                    self._hear_host()
                elif fd == self._zygote.fileno():
                    self._hear_zygote()
                elif fd in self._readers:
                    self._pump(*self._readers[fd])

    def _patience_ms(self) -> float:
        if not self._jobs:
            return IDLE_S * 1000
        if any(job.ending for job in self._jobs.values()):
            return 1  # no event tells when the last process of a uid has vanished
        soonest = min(job.deadline_s for job in self._jobs.values())
        return max(0.0, (soonest - time.monotonic()) * 1000) + 1

    def _hear_host(self) -> None:
        data = os.read(STDIN_FD, 1 << 16)
        if not data:
            os._exit(0)
        for frame in self._frames.feed(data):
            op, number = frame.header["op"], cast(int, frame.header["id"])
            if op == "ping":
                self._say({"id": number, "pong": True})
            elif op == "cancel":
                if number in self._jobs:
                    self._end(self._jobs[number], "cancelled")
            else:
                self._begin(cast(str, op), number, frame)

    def _begin(self, op: str, number: int, frame: frames.Frame) -> None:
        limits = ChildLimits.of(cast(dict[str, float], frame.header["limits"]))
        judged = len(frame.blobs) > 1 and op == "grade"
        uids = [self._uids.popleft() for _ in range(2 if judged else 1)]
        job = self._jobs[number] = Job(number, limits, uids)
        payload = memory_file(frame.blobs[0])
        if op == "program":
            fds = [payload, self._pipe(job, "notes"), memory_file(frame.blobs[1])]
            self._spawn(job, "program", uids[0], [*fds, self._pipe(job, "stdout"), self._pipe(job, "stderr")])
        elif judged:
            solution, tests = socket.socketpair()
            self._spawn(job, "serve", uids[0], [payload, self._pipe(job, "answers"), solution.detach()])
            fds = [memory_file(frame.blobs[1]), self._pipe(job, "verdict"), tests.detach()]
            self._spawn(job, "judge", uids[1], fds)
        else:
            self._spawn(job, "serve", uids[0], [payload, self._pipe(job, "answers")])

    def _pipe(self, job: Job, name: str) -> int:
        write = job.pipe(name)
        self._readers[job.fds[name]] = (job, name)
        self._poll.register(job.fds[name], select.POLLIN)
        return write

    def _spawn(self, job: Job, op: str, uid: int, fds: list[int]) -> None:
        key = f"{job.number}.{op}"
        self._children[key] = (job, op)
        job.live += 1
        order = {"key": key, "op": op, "uid": uid, "limits": job.limits._asdict()}
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self._zygote.sendmsg([json.dumps(order).encode()], [rights])
        for fd in fds:
            os.close(fd)

    def _hear_zygote(self) -> None:
        data = self._zygote.recv(8192)
        if not data:
            os._exit(ZYGOTE_GONE)
        end = json.loads(data)
        job, op = self._children.pop(end["key"])
        job.live -= 1
        if "fork_error" in end:
            self._end(job, "no_process")
            return
        job.exits[op] = end["status"]
        job.cpu_s += end["cpu_s"]
        job.memory_kib = max(job.memory_kib, end["memory_kib"])
        if os.WIFSIGNALED(end["status"]) and not job.ending:
            self._end(job, self._why_killed(job, os.WTERMSIG(end["status"])))
        elif not job.live or op == "judge":
            self._end(job, None)

    def _why_killed(self, job: Job, number: int) -> str:
        """A signal that we did not send: its CPU time, the container's memory, or its own doing."""
        num_oom_kills = count_oom_kills()
        grew, self._num_oom_kills = num_oom_kills > self._num_oom_kills, num_oom_kills
        if number in (signal.SIGKILL, signal.SIGXCPU) and job.cpu_s >= job.limits.cpu_s - 0.5:
            return "timeout"
        return "oom" if grew else "signal"

    def _pump(self, job: Job, name: str) -> None:
        fd = job.fds.get(name)
        job.pump(name)
        if name not in job.fds and fd is not None:
            self._forget(fd)
        if job.reason is not None:
            self._end(job, job.reason)

    def _forget(self, fd: int) -> None:
        self._poll.unregister(fd)
        del self._readers[fd]

    def _end(self, job: Job, reason: str | None) -> None:
        """Start to end a call; the first reason stands."""
        job.reason = job.reason or reason
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
        for uid in busy:
            self._sweeper.kill(uid)
        if (busy or job.live) and not late:
            return
        clean = not busy and not job.live and all([self._sweeper.wipe(uid) for uid in job.uids])
        if not clean:
            job.reason = "dirty"
        self._finish(job)

    def _finish(self, job: Job) -> None:
        for name, fd in list(job.fds.items()):
            while job.pump(name):
                pass
            self._forget(fd)
            if name in job.fds:
                job.close(name)
        del self._jobs[job.number]
        if job.reason != "dirty":
            self._uids.extend(job.uids)
        header: frames.Header = {
            "id": job.number,
            "reason": job.reason,
            "exits": job.exits,
            "truncated": job.truncated,
            "cpu_s": job.cpu_s,
            "memory_mib": job.memory_kib / 1024,
            "wall_s": time.monotonic() - job.began_s,
            "names": list(job.output),
        }
        self._say(header, [bytes(kept) for kept in job.output.values()])

    def _say(self, header: frames.Header, blobs: Sequence[bytes] = ()) -> None:
        frames.write_all(STDOUT_FD, frames.encode(header, blobs))


def count_oom_kills() -> int:
    """How many processes of this container the kernel killed for memory so far (control groups v2, v1)."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        except OSError:
            continue
    return 0


def memory_file(data: bytes) -> int:
    """A descriptor that holds `data`, at its beginning."""
    fd = os.memfd_create("payload")
    frames.write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
