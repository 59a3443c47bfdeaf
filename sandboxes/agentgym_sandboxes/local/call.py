"""One call in boxes of its own: gives them their orders, takes what they say, ends it at its limits.

It answers with the frame that the Docker sandbox's agent would send, so all that reads a frame reads this too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence

from agentgym.sandbox import Limits, SandboxDirty, SandboxLost
from agentgym_sandboxes.agent.claims import claim_in
from agentgym_sandboxes.agent.endings import hit_of, reason_of_failure
from agentgym_sandboxes.agent.frames import Frame, memory_file
from agentgym_sandboxes.agent.job import Hit, Job
from agentgym_sandboxes.agent.limits import ChildLimits
from agentgym_sandboxes.host.running import wire_limits
from agentgym_sandboxes.local.box import Box, End

SOLUTION_ENDS_WITHIN_S = 0.5  # of the tests: its questions have ended


def operations(op: str, blobs: Sequence[bytes]) -> list[str]:
    """What the boxes of a call do, one each. op: program or grade."""
    if op == "grade":
        return ["serve", "judge"] if len(blobs) > 1 else ["serve"]
    return [op]


class Call:
    """A call under way. One use: `run`."""

    def __init__(self, op: str, blobs: Sequence[bytes], limits: Limits, boxes: Sequence[Box]) -> None:
        self._operations = operations(op, blobs)
        assert len(self._operations) == len(boxes)
        self._blobs = blobs
        self._boxes = dict(zip(self._operations, boxes, strict=True))
        self._limits = wire_limits(limits, limits.memory_mib)
        self._job = Job(0, ChildLimits.of(self._limits), [])
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        for box in boxes:
            box.enclosure.limit(limits)

    async def run(self) -> Frame:
        """The answer, once nothing of the call is alive.

        Raises SandboxLost when a box died under it, SandboxDirty when one could not be ended.
        """
        try:
            deadline = self._loop.call_at(self._loop.time() + self._job.limits.wall_s, lambda: self._end("timeout"))
            try:
                with self._prepared() as orders:
                    for op, fds in orders.items():
                        self._boxes[op].order(op, self._limits, fds, functools.partial(self._on_end, op))
                await self._ended
            finally:
                deadline.cancel()
            wall_s = time.monotonic() - self._job.began_s
            await self._finish()
            header = {**self._job.header(self._job.reason, self._job.hit), "wall_s": wall_s}
            return Frame(header, [bytes(kept) for kept in self._job.output.values()])
        finally:
            for fd in self._job.fds.values():
                self._loop.remove_reader(fd)
            while self._job.fds:
                self._job.close(next(iter(self._job.fds)))

    @contextlib.contextmanager
    def _prepared(self) -> Iterator[dict[str, list[int]]]:
        """The descriptors of each operation; ours are closed at the end, when the boxes have theirs."""
        orders: dict[str, list[int]] = {op: [] for op in self._operations}
        try:
            for op, payload in zip(self._operations, self._blobs, strict=False):
                orders[op].append(memory_file(payload))
            if "program" in orders:
                orders["program"].append(self._pipe("notes"))
                orders["program"].append(memory_file(self._blobs[1]))
                orders["program"].extend(self._pipe(name) for name in ("stdout", "stderr"))
            if "serve" in orders:
                orders["serve"].append(self._pipe("answers"))
            if "judge" in orders:
                orders["judge"].append(self._pipe("verdict"))
                solution, tests = socket.socketpair()
                orders["serve"].append(solution.detach())
                orders["judge"].append(tests.detach())
            yield orders
        finally:
            for fds in orders.values():
                for fd in fds:
                    os.close(fd)

    def _pipe(self, name: str) -> int:
        write = self._job.pipe(name)
        self._loop.add_reader(self._job.fds[name], self._pump, name)
        return write

    def _pump(self, name: str) -> None:
        fd = self._job.fds[name]
        self._job.pump(name)
        if name not in self._job.fds:
            self._loop.remove_reader(fd)
        if self._job.reason is not None:
            self._end(self._job.reason)

    def _on_end(self, op: str, end: End | None) -> None:
        """A box reports that its process ended; None when the box is gone."""
        job = self._job
        if self._ended.done():
            return
        if end is None:
            self._end("oom" if self._num_oom_kills() else "lost")
            return
        if end["status"] is None:
            self._end("no_process")
            return
        status = job.exits[op] = end["status"]
        job.cpu_s += end["cpu_s"]
        job.memory_kib = max(job.memory_kib, end["memory_kib"])
        reason = self._why_failed(op, status, end["disk"]) if status else None
        if reason is not None or len(job.exits) == len(self._boxes):
            self._end(reason)  # not before: the tests may still have to report
        elif op == "judge":  # its end is the solution's, which may have come first and not be reported yet
            self._loop.call_later(SOLUTION_ENDS_WITHIN_S, self._end, None)

    def _why_failed(self, op: str, status: int, disk: Hit | None) -> str | None:
        """Its CPU time, its memory, another limit that a program ran into, or its own doing."""
        job = self._job
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        if number in (signal.SIGKILL, signal.SIGXCPU) and job.cpu_s >= job.limits.cpu_s - 0.5:
            return "timeout"
        if self._num_oom_kills() and (number is not None or op == "program"):
            return "oom"
        if op == "program":
            if "notes" in job.fds:
                self._pump("notes")
            reason, claimed = reason_of_failure(status, claim_in(bytes(job.output["notes"])), b"", alone=False)
            if reason == "disk_limit":
                most = job.limits.file_mib
                job.hit = Hit("file_mib", most, most) if claimed == "file" else disk
            return reason or ("signal" if number is not None else None)
        return "signal" if number is not None else None

    def _num_oom_kills(self) -> int:
        return sum(box.enclosure.num_oom_kills() for box in self._boxes.values())

    def _end(self, reason: str | None) -> None:
        """The first reason is kept, and the limit behind it."""
        job = self._job
        job.reason = job.reason or reason
        if not self._ended.done():
            if job.reason == "oom" and self._num_oom_kills():
                memory = [used for box in self._boxes.values() if (used := box.enclosure.memory_mib()) is not None]
                job.hit = Hit("memory_mib", *max(memory)) if memory else None
            if job.hit is None and job.reason is not None and job.reason != "disk_limit":
                job.hit = hit_of(job, job.reason)
            self._ended.set_result(None)

    async def _finish(self) -> None:
        """End the boxes, and take what is left in the pipes. Raises SandboxLost, SandboxDirty."""
        ended = await asyncio.gather(*(box.end() for box in self._boxes.values()))
        self._job.drain(self._loop.remove_reader)
        if self._job.reason in ("lost", "no_process"):
            raise SandboxLost("the sandbox died under its call")
        if not all(ended):
            raise SandboxDirty("the sandbox could not be ended after its call")
