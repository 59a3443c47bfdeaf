"""Work for a thread, one piece after the other, while the loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Behind:
    """A piece that raises ends those behind it; `done` raises the same."""

    def __init__(self) -> None:
        self._last: asyncio.Task[None] | None = None

    def add(self, work: Callable[[], None]) -> None:
        self._last = asyncio.create_task(self._run(self._last, work), name="behind the loop")

    async def done(self) -> None:
        """Wait for all that was added. Who waits may be cancelled; the work is not."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def close(self) -> None:
        """As `done`, for the end of something that has failed: raises nothing."""
        if self._last is not None:
            await asyncio.gather(self._last, return_exceptions=True)

    @staticmethod
    async def _run(before: asyncio.Task[None] | None, work: Callable[[], None]) -> None:
        if before is not None:
            await before
        await asyncio.to_thread(work)
