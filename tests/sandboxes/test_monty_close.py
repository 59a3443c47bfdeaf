"""The end of the embedded interpreter while calls are under way and waiting."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.sandbox import Limits, RunStatus, SandboxUnavailable
from agentgym_sandboxes.monty.backend import MontyBackend
from agentgym_sandboxes.monty.config import MontyConfig


async def test_a_call_that_waits_at_the_close_is_refused_and_not_cancelled() -> None:
    backend = await MontyBackend(MontyConfig(workers=1)).start()
    limits = Limits(wall_s=0.5)
    first, second = (asyncio.create_task(backend.run("while True: pass", limits=limits)) for _ in range(2))
    async with asyncio.timeout(10):
        while backend.metrics()["sandbox/calls_waiting"] < 1:
            await asyncio.sleep(0.01)
        await backend.close()
        assert (await first).status is RunStatus.TIMEOUT
        with pytest.raises(SandboxUnavailable, match="the sandbox was closed"):
            await second
    assert backend.metrics()["sandbox/calls_failed_total"] == 1
