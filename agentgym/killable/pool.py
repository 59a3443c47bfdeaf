"""A pool of child processes of one event loop: they are kept, and one that was interrupted or ended is replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from agentgym.errors import InfraError
from agentgym.killable.process import Child

C = TypeVar("C", bound=Child)


class Pool(Generic[C]):
    """Starts children when they are needed, at most `size`, each of which serves one user at a time.

    what: their work, for errors. start_s: how long one may take to start.
    """

    def __init__(self, make: Callable[[], C], what: str, *, size: int, start_s: float) -> None:
        self._make, self._what, self._start_s = make, what, start_s
        self._free = asyncio.Semaphore(size)
        self._idle: list[C] = []
        self._all: set[C] = set()
        self.num_started = 0

    @asynccontextmanager
    async def child(self) -> AsyncIterator[C]:
        """A child for one use. It is killed when the use raises or is cancelled: its channel may be out of step.

        Raises InfraError when none could be started, UserError when its handler was refused.
        """
        async with self._free:
            child = await self._take()
            try:
                yield child
            except BaseException:
                await asyncio.shield(self._drop(child))
                raise
            if child.alive:
                self._idle.append(child)
            else:
                await self._drop(child)

    async def close(self) -> None:
        """End every child; safe to call twice."""
        self._idle.clear()
        await asyncio.gather(*(self._drop(child) for child in list(self._all)))

    async def _take(self) -> C:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            await self._drop(child)
        child = self._make()
        self._all.add(child)
        self.num_started += 1
        try:
            async with asyncio.timeout(self._start_s):
                await child.start()
        except (OSError, EOFError, TimeoutError) as error:
            await self._drop(child)
            why = f"it took longer than {self._start_s:g} s" if isinstance(error, TimeoutError) else repr(error)
            raise InfraError(f"a process for {self._what} did not start: {why}. {child.output}".rstrip(". ")) from error
        except BaseException:
            await asyncio.shield(self._drop(child))
            raise
        return child

    async def _drop(self, child: C) -> None:
        self._all.discard(child)
        await child.end()
