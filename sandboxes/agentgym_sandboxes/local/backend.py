"""What sandboxes of local processes have in common: calls in boxes from a pool, verdicts, metrics."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from agentgym.errors import UserError
from agentgym.sandbox import Capabilities, Limits, RunStatus, SandboxLost, SandboxUnavailable
from agentgym.types import SandboxSpec
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.host.backend import NOT_STARTED, OTHER_LOOP, AgentBackend, Answer, read_answer
from agentgym_sandboxes.local.box import Box, BoxGone
from agentgym_sandboxes.local.call import Call, operations
from agentgym_sandboxes.local.enclosure import Enclosure
from agentgym_sandboxes.local.pool import Pool


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


class LocalBackend(AgentBackend):
    """Calls in boxes of processes. A subclass says where its boxes run, and what that enforces."""

    name: ClassVar[str]

    def __init__(self, config: LocalConfig) -> None:
        super().__init__()
        self._config = config
        self._pool: Pool | None = None

    @abstractmethod
    async def probe(self) -> Capabilities:
        """What it enforces here. Raises SandboxUnavailable with the way to get it."""

    @abstractmethod
    async def _prepare(self) -> str:
        """Make ready what every box needs; the Python to run. Raises SandboxUnavailable."""

    @abstractmethod
    def _new_enclosure(self) -> Enclosure:
        """Where the next box runs."""

    def supports(self, spec: SandboxSpec) -> bool:
        return not spec.session and spec.image is None and spec.memory_mib <= self._config.memory_mib

    async def _start(self) -> None:
        config, python = self._config, await self._prepare()

        async def start_box() -> Box:
            return await Box.start(self._new_enclosure(), python, config.start_timeout_s)

        pool = Pool(
            start_box,
            self._meter,
            num_spares=config.spares,
            num_slots=self._num_at_once,
            num_starts=2 * (os.cpu_count() or 1),
            lease_timeout_s=config.lease_timeout_s,
        )
        await pool.start()
        self._pool = pool

    async def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    def metrics(self) -> dict[str, float]:
        pool = self._pool
        if pool is None:
            return self._meter.metrics()
        return self._meter.metrics(
            {
                "slots_used": pool.num_busy,
                "slots": self._num_at_once,
                "calls_waiting": pool.num_waiting,
                "containers_spare": pool.num_spares,
            }
        )

    @property
    def _num_at_once(self) -> int:
        return self._config.slots or 2 * (os.cpu_count() or 1)

    async def _call(
        self, op: str, blobs: Sequence[bytes], limits: Limits, answer_of: Callable[[Frame], Answer]
    ) -> Answer:
        """Make a call in boxes of its own; once more when one died under it."""
        pool = self._pool
        if pool is None:
            raise SandboxUnavailable(NOT_STARTED)
        if pool.loop is not asyncio.get_running_loop():
            raise UserError(OTHER_LOOP)
        limits = dataclasses.replace(limits, memory_mib=min(limits.memory_mib, self._config.memory_mib))
        with self._meter.counting_failures():
            async with pool.slot() as queue_s:
                answer = await read_answer(await self._frame(pool, op, blobs, limits), answer_of)
        self._meter.answered(answer.status, queue_s=queue_s, wall_s=answer.wall_s)
        if answer.status is RunStatus.OOM:
            self._meter.counts["oom_kills_total"] += 1
        return answer

    async def _frame(self, pool: Pool, op: str, blobs: Sequence[bytes], limits: Limits) -> Frame:
        num_lost = num_gone = 0
        while True:
            boxes = await pool.take(len(operations(op, blobs)))
            try:
                return await Call(op, blobs, limits, boxes).run()
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
            finally:
                await pool.give_back(boxes)
