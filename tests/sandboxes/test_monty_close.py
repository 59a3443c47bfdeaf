"""The end of the embedded interpreter while calls are under way and waiting."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentgym.sandbox import Limits, RunResult, RunStatus, SandboxUnavailable
from agentgym_sandboxes.monty.backend import MontyBackend
from agentgym_sandboxes.monty.config import MontyConfig
from agentgym_sandboxes.monty.interpreter import Interpreter


class Held(Interpreter):
    """Keeps its thread until it is told."""

    def __init__(self, backend: MontyBackend) -> None:
        assert backend._pool is not None
        super().__init__(backend._pool, backend.config)
        self.began, self.told = threading.Event(), threading.Event()

    def run(self, code: str, limits: Limits) -> RunResult:
        self.began.set()
        result = super().run(code, limits)
        self.told.wait(60)
        return result


async def test_a_call_that_waits_at_the_close_is_refused_and_not_cancelled() -> None:
    backend = await MontyBackend(MontyConfig(workers=1)).start()
    interpreter = backend._interpreter = Held(backend)
    limits = Limits(wall_s=0.5)
    first, second = (asyncio.create_task(backend.run("while True: pass", limits=limits)) for _ in range(2))
    async with asyncio.timeout(60):
        while backend.metrics()["sandbox/calls_waiting"] < 1 or not interpreter.began.is_set():
            await asyncio.sleep(0.01)
        closing = asyncio.create_task(backend.close())
        with pytest.raises(SandboxUnavailable, match="the sandbox was closed"):
            await second
        assert not first.done() and not closing.done()
        interpreter.told.set()
        await closing
        assert (await first).status is RunStatus.TIMEOUT
    assert backend.metrics()["sandbox/calls_failed_total"] == 1
