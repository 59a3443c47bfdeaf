"""How often Python looks for garbage while episodes are played."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

SWEEP_S = 60.0
LONGEST_SHARE = 0.01  # of the time, for sweeps
THRESHOLDS = (50_000, 20, 100)  # Python's own are (700, 10, 10), made for programs with few objects that live


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles of garbage less often inside this block.

    Each search walks through what is alive: with 10,000 episodes that took more processor time than playing them.
    A process that has set higher thresholds, or none, keeps them.
    """
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, zip(before, THRESHOLDS, strict=True)))
    try:
        yield
    finally:
        gc.set_threshold(*before)


@asynccontextmanager
async def swept(every_s: float = SWEEP_S) -> AsyncIterator[None]:
    """Collections are rare inside this block, and one that goes through everything comes every so many seconds.

    With the raised thresholds it would never come, and what each step leaves behind in cycles adds up to megabytes.
    """
    with rare_collections():
        sweeping = asyncio.create_task(_sweep(every_s), name="garbage")
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)


async def _sweep(every_s: float) -> None:
    took_s = 0.0
    while True:
        await asyncio.sleep(max(every_s, took_s / LONGEST_SHARE))
        began = time.perf_counter()
        gc.collect()
        took_s = time.perf_counter() - began
