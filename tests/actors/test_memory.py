"""Calls leave nothing behind, neither in the process that makes them nor in the one that answers."""

from __future__ import annotations

import pytest
from counting import Counting, resident_bytes

from agentgym.actors.options import ActorOptions
from agentgym.actors.runtime import Runtime

pytestmark = pytest.mark.hostile

CALLS = 8000


async def test_thousands_of_calls_leave_no_memory_behind() -> None:
    async with Runtime() as runtime:
        group = Counting.launch("counting", 0, options=ActorOptions(), runtime=runtime)
        await group.start(timeout_s=60)
        for _ in range(CALLS // 2):  # until tables and buffers have their size
            await group.call_one(Counting.add, 1, timeout_s=60)
        here, there = resident_bytes(), await group.call_one(Counting.resident_bytes, timeout_s=60)
        for _ in range(CALLS):
            await group.call_one(Counting.add, 1, timeout_s=60)
        there = await group.call_one(Counting.resident_bytes, timeout_s=60) - there
        assert there < 200 * CALLS, "Monarch's own ports leave 500 bytes with every answer"
        assert resident_bytes() - here < 400 * CALLS, "Monarch's own call_one leaves 1,000 bytes with every call"
        await group.stop()
