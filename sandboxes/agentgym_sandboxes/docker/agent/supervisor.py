"""PID 1: takes calls from the host, has them forked, ends them at their limits, sweeps after them, answers."""

from __future__ import annotations

import array
import collections
import functools
import heapq
import importlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Callable, NoReturn, cast

from . import frames
from .claims import claim_in
from .endings import count_oom_kills, hit_of, reason_of_failure
from .job import Job
from .limits import ChildLimits
from .sweep import Sweeper

STDIN_FD, STDOUT_FD = 0, 1
SWEEP_PATIENCE_S = 3.0  # what can't be killed or wiped by then makes the container dirty
IDLE_S = 600.0  # the host pings every few seconds: it is gone
ZYGOTE_GONE, BAD_FRAME = 70, 71
FAMILIES = {"session": ".session", "proxy": ".proxy"}  # imported when an op `family.something` comes first

OnEnd = Callable[[dict[str, float]], None]


class Supervisor:
    """Serves calls until its standard input ends. uids: more than the calls that run at a time.

    A module of `FAMILIES` has a function `register(supervisor)`: it adds its operations to `operations`, by
    their names on the wire, and uses `watch`, `at`, `say` and `spawn`. Handlers must not block.
    """

    def __init__(self, zygote: socket.socket, uids: Sequence[int]) -> None:
        self._zygote = zygote
        self._uids: collections.deque[int] = collections.deque(uids)  # in turn, so that a uid rests after use
        self._jobs: dict[int, Job] = {}
        self._children: dict[int, OnEnd] = {}
        self._frames = frames.FrameReader()
        self.sweeper = Sweeper()
        self._num_oom_kills = count_oom_kills()
        self._poll = select.poll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()
        self._outgoing: collections.deque[memoryview] = collections.deque()
        self._heard_s = time.monotonic()
        self.operations: dict[str, frames.OnFrame] = {"ping": self._pong, "cancel": self._cancel}
        for op in ("program", "grade"):
            self.operations[op] = functools.partial(self._begin, op)
        os.set_blocking(STDOUT_FD, False)  # the host may be busy writing: neither waits for the other
        self.watch(STDIN_FD, self._hear_host)
        self.watch(zygote.fileno(), self._hear_zygote)

    def serve(self) -> NoReturn:
        """The loop. Ends the process, and so the container, when the host or the zygote is gone."""
        while True:
            for job in list(self._jobs.values()):
                self._advance(job)
            now_s = time.monotonic()
            while self._timers and self._timers[0][0] <= now_s:
                heapq.heappop(self._timers)[2]()
            if not self._jobs and now_s - self._heard_s > IDLE_S:
                os._exit(0)
            for fd, _ in self._poll.poll(self._patience_ms()):
                if fd in self._watched:  # an earlier one of these events may have ended it
                    self._watched[fd]()

    def watch(self, fd: int, on_ready: Callable[[], None], events: int = select.POLLIN) -> None:
        """Call on_ready when fd is ready; it must bear being called too often. Replaces an earlier watch."""
        self._watched[fd] = on_ready
        self._poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Before fd is closed."""
        del self._watched[fd]
        self._poll.unregister(fd)

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        """Call it once, at a time of the monotonic clock. What has become needless must see so itself."""
        heapq.heappush(self._timers, (when_s, next(self._serials), call))

    def say(self, header: frames.Header, blobs: Sequence[frames.Blob] = ()) -> None:
        """Send a frame: the answer to the host's frame of that `id`, or an `event` that it did not ask for."""
        self._outgoing.append(memoryview(frames.prefix(header, blobs)))
        self._outgoing.extend(memoryview(blob) for blob in blobs if blob)
        self._write()

    def take_uid(self) -> int:
        """One that no process has."""
        return self._uids.popleft()

    def give_uid(self, uid: int) -> None:
        self._uids.append(uid)

    @property
    def num_unsent(self) -> int:
        """Bytes that the host has not taken yet."""
        return sum(len(piece) for piece in self._outgoing)

    def _write(self) -> None:
        try:
            while self._outgoing:
                piece = self._outgoing[0]
                num_written = os.write(STDOUT_FD, piece)
                if num_written < len(piece):
                    self._outgoing[0] = piece[num_written:]
                else:
                    self._outgoing.popleft()
        except BlockingIOError:
            self.watch(STDOUT_FD, self._write, select.POLLOUT)
        else:
            if STDOUT_FD in self._watched:
                self.unwatch(STDOUT_FD)

    def _patience_ms(self) -> float:
        if any(job.ending for job in self._jobs.values()):
            return 1  # no event tells when the last process of a uid has vanished
        soonest_s = min([self._heard_s + IDLE_S, *(job.deadline_s for job in self._jobs.values())])
        if self._timers:
            soonest_s = min(soonest_s, self._timers[0][0])
        return max(0.0, (soonest_s - time.monotonic()) * 1000) + 1

    def _hear_host(self) -> None:
        data = os.read(STDIN_FD, 1 << 16)
        if not data:
            os._exit(0)
        self._heard_s = time.monotonic()
        try:
            complete = self._frames.feed(data)
        except frames.FrameError as error:
            print(f"the host sent {error}", file=sys.stderr, flush=True)
            os._exit(BAD_FRAME)
        for frame in complete:
            op = str(frame.header["op"])
            family = op.partition(".")[0]
            if op not in self.operations and family in FAMILIES:
                importlib.import_module(FAMILIES[family], __package__).register(self)
            if op in self.operations:
                self.operations[op](frame)
            else:
                self.say({"id": frame.header["id"], "error": f"no operation {op!r}"})

    def _pong(self, frame: frames.Frame) -> None:
        self.say({"id": frame.header["id"], "pong": True})

    def _cancel(self, frame: frames.Frame) -> None:
        job = self._jobs.get(cast(int, frame.header["id"]))
        if job is not None:
            self._end(job, "cancelled")

    def _begin(self, op: str, frame: frames.Frame) -> None:
        number = cast(int, frame.header["id"])
        limits = ChildLimits.of(cast(dict[str, float], frame.header["limits"]))
        judged = len(frame.blobs) > 1 and op == "grade"
        uids = [self._uids.popleft() for _ in range(2 if judged else 1)]
        job = self._jobs[number] = Job(number, limits, uids)
        payload = frames.memory_file(frame.blobs[0])
        if op == "program":
            fds = [payload, self._pipe(job, "notes"), frames.memory_file(frame.blobs[1])]
            self._spawn(job, "program", uids[0], [*fds, self._pipe(job, "stdout"), self._pipe(job, "stderr")])
        elif judged:
            solution, tests = socket.socketpair()
            self._spawn(job, "serve", uids[0], [payload, self._pipe(job, "answers"), solution.detach()])
            fds = [frames.memory_file(frame.blobs[1]), self._pipe(job, "verdict"), tests.detach()]
            self._spawn(job, "judge", uids[1], fds)
        else:
            self._spawn(job, "serve", uids[0], [payload, self._pipe(job, "answers")])

    def _pipe(self, job: Job, name: str) -> int:
        write = job.pipe(name)
        self.watch(job.fds[name], functools.partial(self._pump, job, name))
        return write

    def _spawn(self, job: Job, op: str, uid: int, fds: list[int]) -> None:
        job.live += 1
        order: dict[str, object] = {"op": op, "uid": uid, "limits": job.limits._asdict()}
        self.spawn(order, fds, functools.partial(self._ended, job, op))

    def spawn(self, order: dict[str, object], fds: list[int], on_end: OnEnd) -> None:
        """Have the zygote fork a child that owns `fds`.

        on_end gets its `pid` first, when the order names a `keeper`; then its `status`, `cpu_s` and
        `memory_kib`, or its `fork_error`.
        """
        key = next(self._serials)
        self._children[key] = on_end
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        self._zygote.sendmsg([json.dumps({**order, "key": key}).encode()], [rights])
        for fd in fds:
            os.close(fd)

    def _hear_zygote(self) -> None:
        data = self._zygote.recv(8192)
        if not data:
            os._exit(ZYGOTE_GONE)
        end = json.loads(data)
        on_end = self._children[end["key"]] if "pid" in end else self._children.pop(end["key"])
        on_end(end)

    def _ended(self, job: Job, op: str, end: dict[str, float]) -> None:
        job.live -= 1
        if "fork_error" in end:
            self._end(job, "no_process")
            return
        status = int(end["status"])
        job.exits[op] = status
        job.cpu_s += end["cpu_s"]
        job.memory_kib = max(job.memory_kib, int(end["memory_kib"]))
        if job.ending:
            return
        if status:
            self._end(job, self._why_failed(job, op, status))
        elif not job.live or op == "judge":
            self._end(job, None)

    def _why_failed(self, job: Job, op: str, status: int) -> str | None:
        """Its CPU time, the container's memory, another limit that a program ran into, or its own doing."""
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        num_oom_kills = count_oom_kills()
        grew, self._num_oom_kills = num_oom_kills > self._num_oom_kills, num_oom_kills
        if number in (signal.SIGKILL, signal.SIGXCPU) and job.cpu_s >= job.limits.cpu_s - 0.5:
            return "timeout"
        if grew and (number is not None or op == "program"):
            return "oom"
        if op == "program":
            self._pump(job, "notes")
            claimed = claim_in(bytes(job.output["notes"]))
            reason, claimed = reason_of_failure(status, claimed, alone=False)
            if reason is not None:
                job.hit = hit_of(job, reason, claimed=claimed)
                return reason
        return "signal" if number is not None else None

    def _pump(self, job: Job, name: str) -> None:
        fd = job.fds.get(name)
        job.pump(name)
        if name not in job.fds and fd is not None:
            self.unwatch(fd)
        if job.reason is not None:
            self._end(job, job.reason)

    def _end(self, job: Job, reason: str | None) -> None:
        """Start to end a call; the first reason stands."""
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
        busy = [uid for uid in job.uids if self.sweeper.has_processes(uid)]
        for uid in busy:
            self.sweeper.kill(uid)
        if (busy or job.live) and not late:
            return
        clean = not busy and not job.live and all([self.sweeper.wipe(uid) for uid in job.uids])
        if not clean:
            job.reason = "dirty"
        self._finish(job)

    def _finish(self, job: Job) -> None:
        for name, fd in list(job.fds.items()):
            while job.pump(name):
                pass
            self.unwatch(fd)
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
            "wall_s": job.wall_s,
            "names": list(job.output),
        }
        if job.hit is not None:
            header.update(limit=job.hit.limit, used=job.hit.used, allowed=job.hit.allowed)
        self.say(header, list(job.output.values()))
