"""Rows of data sets as an actor: one process reads ahead of a loop, and shards read for several."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint
from agentgym.loops.rows import Row, RowSource, RowStream


class DatasetActor(ServiceActor):
    """settings: those of `RowStream` but its sources. Launch it `as_actor`: its position is the process's own."""

    def __init__(self, sources: Sequence[RowSource], settings: Mapping[str, Any] | None = None) -> None:
        self._sources, self._settings = tuple(sources), dict(settings or {})
        self._lock = asyncio.Lock()

    async def on_start(self) -> None:
        """Reads the first rows of every source. Raises UserError for one without."""
        self._stream = RowStream(sources=self._sources, **self._settings)
        await asyncio.to_thread(self._stream.open)

    @endpoint
    async def sample(self) -> Row | None:
        """The next row; None when all sources have ended."""
        async with self._lock:
            return await asyncio.to_thread(self._stream.draw)

    @endpoint
    async def sample_many(self, count: int) -> list[Row]:
        """The next rows; fewer when all sources have ended."""
        async with self._lock:
            return await asyncio.to_thread(self._draw_many, count)

    @endpoint
    async def epochs(self) -> dict[str, int]:
        """How often each source has begun again."""
        return self._stream.epochs()

    @endpoint
    async def state_dict(self) -> dict[str, Any]:
        async with self._lock:
            return self._stream.state_dict()

    @endpoint
    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        async with self._lock:
            await asyncio.to_thread(self._stream.load_state_dict, state)

    def _draw_many(self, count: int) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < count and (row := self._stream.draw()) is not None:
            rows.append(row)
        return rows
