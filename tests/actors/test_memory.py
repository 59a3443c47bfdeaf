"""A call leaves nothing behind in the process that made it."""

from __future__ import annotations

import ctypes
import gc

import pytest
from counting import Counting

from agentgym.actors.options import ActorOptions
from agentgym.actors.runtime import Runtime

pytestmark = pytest.mark.hostile

CALLS = 6000


class MallInfo(ctypes.Structure):
    """What glibc's `mallinfo2` returns. uordblks: bytes in use."""

    _fields_ = [
        *((f"before_{i}", ctypes.c_size_t) for i in range(7)),
        ("uordblks", ctypes.c_size_t),
        *((f"after_{i}", ctypes.c_size_t) for i in range(2)),
    ]


def bytes_in_use() -> int:
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = MallInfo
    gc.collect()
    return int(mallinfo2().uordblks)


async def test_thousands_of_calls_leave_no_memory_behind() -> None:
    async with Runtime() as runtime:
        group = Counting.launch("counting", 0, options=ActorOptions(), runtime=runtime)
        await group.start(timeout_s=60)
        for _ in range(CALLS // 2):  # until tables and buffers have their size
            await group.call_one(Counting.add, 1, timeout_s=60)
        before = bytes_in_use()
        for _ in range(CALLS):
            await group.call_one(Counting.add, 1, timeout_s=60)
        assert bytes_in_use() - before < 500 * CALLS, "Monarch's own call_one leaves 1,000 bytes with every call"
        await group.stop()
