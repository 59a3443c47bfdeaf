"""A gate: some pass while it is open, and who closes it waits for those that are inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self._opened, self._empty = asyncio.Event(), asyncio.Event()
        self._opened.set()
        self._empty.set()
        self._inside = 0

    @asynccontextmanager
    async def inside(self) -> AsyncIterator[None]:
        """Waits until the gate is open."""
        await self._opened.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def close(self) -> None:
        """Nobody comes in from now on; returns when nobody is inside. Closed it stays closed."""
        self._opened.clear()
        await self._empty.wait()

    def open(self) -> None:
        self._opened.set()
