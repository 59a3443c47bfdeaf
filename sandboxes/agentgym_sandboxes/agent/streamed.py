"""One side of a grade, the solution's or the tests', in a sandbox of its own: frames on standard input and output.

The first frame is the order. Frames with `link` carry what the two sides say to each other, which their owner passes
on; one with `closed` says that the other side has ended. The last frame is the answer, as of any call.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

from .endings import hit_of
from .frames import Frame, FrameReader, encode, memory_file, write_all
from .job import Job
from .limits import ChildLimits, set_rlimits
from .zygote import run_child, warm_up

OUTPUTS = {"serve": "answers", "judge": "verdict"}
_PIECE = 1 << 16


def main(argv: list[str]) -> None:
    reader, stdin, stdout = FrameReader(), os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    warm_up()
    write_all(stdout, encode({"ready": True}))
    frames: list[Frame] = []
    while not frames:
        frames = _received(stdin, reader)
    order, *frames = frames
    op, linked = str(order.header["op"]), bool(order.header["linked"])
    job = Job(0, ChildLimits.of(order.header["limits"]), [])  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    ours.settimeout(job.limits.wall_s)  # a solution that does not read must not hold us up for longer
    fds = [memory_file(order.blobs[0]), job.pipe(OUTPUTS[op])] + ([theirs.fileno()] if linked else [])
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    pid = os.fork()
    if pid == 0:
        run_child(op, fds, lambda: _confine(job.limits))
    theirs.close()
    for fd in fds[:2]:
        os.close(fd)
    _Relay(job, pid, op, ours, stdout).run(stdin, reader, frames, wake)
    reason = job.reason
    hit = None if reason is None else hit_of(job, reason)
    write_all(stdout, encode(job.header(reason, hit), list(job.output.values())))


def _confine(limits: ChildLimits) -> None:
    os.setsid()
    os.umask(0o077)
    set_rlimits(limits)


def _received(stdin: int, reader: FrameReader) -> list[Frame]:
    data = os.read(stdin, _PIECE)
    if not data:
        os._exit(0)  # the owner is gone
    return reader.feed(data)


class _Relay:
    """Passes on what the two sides say to each other until this one has ended or reached a limit."""

    def __init__(self, job: Job, pid: int, op: str, link: socket.socket, stdout: int) -> None:
        self._job = job
        self._pid = pid
        self._op = op
        self._link = link
        self._stdout = stdout

    def run(self, stdin: int, reader: FrameReader, frames: list[Frame], wake: int) -> None:
        job, poll = self._job, select.poll()
        for fd in (stdin, wake, self._link.fileno(), job.fds[OUTPUTS[self._op]]):
            poll.register(fd, select.POLLIN)
        self._pass_in(frames)
        while job.reason is None and not job.exits:
            ready = poll.poll(max(0.0, job.deadline_s - time.monotonic()) * 1000)
            if not ready:
                job.reason = "timeout"
            for fd, _ in ready:
                if fd == stdin:
                    self._pass_in(_received(stdin, reader))
                elif fd == wake:
                    os.read(wake, _PIECE)
                    self._reap(os.WNOHANG)
                elif fd == self._link.fileno():
                    if not self._pass_out():
                        poll.unregister(fd)
                else:
                    job.pump(OUTPUTS[self._op])
                    if OUTPUTS[self._op] not in job.fds:
                        poll.unregister(fd)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        self._reap(0)
        while self._pass_out():
            pass
        job.drain(lambda fd: None)

    def _reap(self, options: int) -> None:
        job = self._job
        while True:
            try:
                pid, status, usage = os.wait4(-1, options)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._pid:
                job.exits[self._op] = status
                job.cpu_s, job.memory_kib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss
                if os.WIFSIGNALED(status) and job.reason is None:
                    spent = job.cpu_s >= job.limits.cpu_s - 0.5
                    job.reason = "timeout" if spent else "signal"

    def _pass_in(self, frames: list[Frame]) -> None:
        for frame in frames:
            with contextlib.suppress(OSError):  # it has ended
                if "closed" in frame.header:
                    self._link.shutdown(socket.SHUT_WR)
                else:
                    self._link.sendall(frame.blobs[0])

    def _pass_out(self) -> bool:
        """A piece of what this side says to the other; False at its end."""
        data: bytes | None = None
        with contextlib.suppress(OSError):
            data = self._link.recv(_PIECE, socket.MSG_DONTWAIT)
        if data:
            write_all(self._stdout, encode({"link": True}, [data]))
        return bool(data)
