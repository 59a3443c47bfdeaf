"""What sandboxes of local processes have in common: calls in boxes from a pool, verdicts, metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import ClassVar, Protocol, Self

from agentgym.errors import UserError
from agentgym.sandbox import (
    Capabilities,
    GradeRequest,
    Limits,
    RunResult,
    RunStatus,
    SandboxLost,
    SandboxUnavailable,
    Session,
    Verdict,
)
from agentgym.types import SandboxSpec
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.host.grading import grade_blobs, verdict_of
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.host.running import result_of
from agentgym_sandboxes.host.stdio import grade_programs, judges_programs
from agentgym_sandboxes.local.box import Box, BoxGone
from agentgym_sandboxes.local.call import Call, operations
from agentgym_sandboxes.local.place import Place
from agentgym_sandboxes.local.pool import Pool

DEFAULT_LIMITS = Limits()


class LocalConfig(Protocol):
    """The options that these backends share."""

    @property
    def slots(self) -> int: ...
    @property
    def spares(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def lease_timeout_s(self) -> float: ...
    @property
    def start_timeout_s(self) -> float: ...


class LocalBackend(ABC):
    """A sandbox that is started once a run. A subclass says where its boxes run, and what that enforces."""

    name: ClassVar[str]

    def __init__(self, config: LocalConfig) -> None:
        self._config = config
        self._meter = CallMeter()
        self._pool: Pool | None = None
        self._turns = asyncio.Lock()  # of starts and closes

    @abstractmethod
    async def probe(self) -> Capabilities:
        """What it enforces here. Raises SandboxUnavailable with the way to get it."""

    @abstractmethod
    async def _prepare(self) -> str:
        """Make ready what every box needs; the Python to run. Raises SandboxUnavailable."""

    @abstractmethod
    def _new_place(self) -> Place:
        """Where the next box runs."""

    def supports(self, spec: SandboxSpec) -> bool:
        return not spec.session and spec.image is None and spec.memory_mib <= self._config.memory_mib

    async def start(self) -> Self:
        """Start the first box. Raises SandboxUnavailable with what to do."""
        async with self._turns:
            if self._pool is None:
                await self._start()
        return self

    async def _start(self) -> None:
        config, python = self._config, await self._prepare()

        async def start_box() -> Box:
            return await Box.start(self._new_place(), python, config.start_timeout_s)

        pool = Pool(
            start_box,
            self._meter,
            num_spares=config.spares,
            num_slots=self._num_slots,
            num_starts=2 * (os.cpu_count() or 1),
            lease_timeout_s=config.lease_timeout_s,
        )
        await pool.start()
        self._pool = pool

    async def close(self) -> None:
        """End every box; safe to call twice. Waits for a start, and goes on when it is cancelled."""

        async def close() -> None:
            async with self._turns:
                pool, self._pool = self._pool, None
                if pool is not None:
                    await pool.close()

        await asyncio.shield(asyncio.create_task(close()))

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        """Run a program. Raises InfraError when the sandbox, not the program, failed."""
        blobs = [code.encode("utf-8", "surrogatepass"), stdin.encode("utf-8", "surrogatepass")]
        frame, queue_s = await self._call("program", blobs, limits)
        result = result_of(frame)
        self._count(result.status, queue_s, result.wall_s)
        return result

    async def grade(self, request: GradeRequest) -> Verdict:
        """Judge a solution. Raises InfraError when the sandbox, not the solution, failed."""
        if judges_programs(request):
            return await grade_programs(request, self.run, self._num_slots)
        frame, queue_s = await self._call("grade", grade_blobs(request), request.limits)
        verdict = verdict_of(frame, request)
        self._count(verdict.status, queue_s, verdict.wall_s)
        return verdict

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Session]:
        """Raises UserError: every call has a sandbox of its own here."""
        raise UserError(f"sandbox {self.name!r} has no sessions: each of its calls has a sandbox of its own")

    def metrics(self) -> dict[str, float]:
        pool = self._pool
        if pool is None:
            return self._meter.metrics()
        return self._meter.metrics(
            {
                "slots_used": pool.num_busy,
                "slots": self._num_slots,
                "calls_waiting": pool.num_waiting,
                "containers_spare": pool.num_spares,
            }
        )

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def _num_slots(self) -> int:
        return self._config.slots or 2 * (os.cpu_count() or 1)

    async def _call(self, op: str, blobs: Sequence[bytes], limits: Limits) -> tuple[Frame, float]:
        """Make a call in boxes of its own; once more when one died under it."""
        pool = self._pool
        if pool is None:
            raise SandboxUnavailable("the sandbox is not started; use `async with` or await its start()")
        if pool.loop is not asyncio.get_running_loop():
            raise UserError("the sandbox was started in another event loop, which alone can use it")
        limits = dataclasses.replace(limits, memory_mib=min(limits.memory_mib, self._config.memory_mib))
        num_lost = num_gone = 0
        with self._meter.counting_failures():
            async with pool.slot() as queue_s:
                while True:
                    try:
                        return await _call_once(pool, op, blobs, limits), queue_s
                    except BoxGone:
                        num_gone += 1
                        if num_gone > self._config.spares + 1:  # more than all that had died unnoticed
                            raise
                    except SandboxLost:
                        self._meter.counts["replaced_lost_total"] += 1
                        num_lost += 1
                        if num_lost > 1:
                            raise
                        self._meter.counts["retries_total"] += 1

    def _count(self, status: RunStatus, queue_s: float, wall_s: float) -> None:
        self._meter.answered(status, queue_s=queue_s, wall_s=wall_s)
        if status is RunStatus.OOM:
            self._meter.counts["oom_kills_total"] += 1


async def _call_once(pool: Pool, op: str, blobs: Sequence[bytes], limits: Limits) -> Frame:
    boxes = await pool.take(len(operations(op, blobs)))
    try:
        return await Call(op, blobs, limits, boxes).run()
    finally:
        await pool.give_back(boxes)
