"""Work in a thread while the loop goes on: what a step leaves on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Background:
    """Pieces of work, one after the other in a thread. One that raises ends the later ones; `done` raises the same."""

    def __init__(self) -> None:
        self._last: asyncio.Task[None] | None = None

    def add(self, work: Callable[[], None]) -> None:
        self._last = asyncio.create_task(self._run(self._last, work), name="background")

    async def done(self) -> None:
        """Wait for all that was added. Cancelling the wait does not cancel the work."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def close(self) -> None:
        """Waits as `done` does, at the end of a failed run: raises nothing."""
        if self._last is not None:
            await asyncio.gather(self._last, return_exceptions=True)

    @staticmethod
    async def _run(before: asyncio.Task[None] | None, work: Callable[[], None]) -> None:
        if before is not None:
            await before
        await asyncio.to_thread(work)
