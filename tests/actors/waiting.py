"""Waits for a condition; its deadline is for what never happens, not for what is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psutil

LONG_S = 60.0


async def until(condition: Callable[[], bool], timeout_s: float = LONG_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def no_child_left() -> AsyncIterator[None]:
    """What was started within has ended. It may take a moment to be reaped; what nobody stopped stays."""
    before = _children()
    yield
    await until(lambda: _children() <= before, timeout_s=20)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))
