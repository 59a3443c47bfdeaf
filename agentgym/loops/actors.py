"""Rows of data sets and replay buffers as actors, in processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint
from agentgym.loops.replay_buffer import ReplayBuffer
from agentgym.loops.rows import Row, RowSource, RowStream


class DatasetActor(ServiceActor):
    """Reads ahead of a loop; as shards, for several.

    settings: those of `RowStream` but its sources. Launch it `as_actor`: its position is the process's own.
    """

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


class ReplayBufferActor(ServiceActor):
    """A buffer for items that come from several processes.

    settings, more: those of `ReplayBuffer`. Policies are names or import paths. One process holds the items: launch it
    `as_actor`, not as replicas.
    """

    def __init__(self, settings: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> None:
        self._settings = {**settings, **more}

    async def on_start(self) -> None:
        self._buffer: ReplayBuffer[Any] = ReplayBuffer(**self._settings)

    @endpoint
    async def add(self, item: object, policy_version: int | None = None) -> None:
        self._buffer.add(item, policy_version)

    @endpoint
    async def sample(self, curr_policy_version: int, batch_size: int | None = None) -> Any:
        """`[dp_size][batch_size]` items, or what `collate` makes of them; None while there are too few."""
        return self._buffer.sample(curr_policy_version, batch_size)

    @endpoint
    async def evict(self, curr_policy_version: int) -> None:
        self._buffer.evict(curr_policy_version)

    @endpoint
    async def clear(self) -> None:
        self._buffer.clear()

    @endpoint
    async def numel(self) -> int:
        """How many items there are."""
        return len(self._buffer)

    @endpoint
    async def get_metrics(self) -> dict[str, float]:
        return self._buffer.get_metrics()

    @endpoint
    async def state_dict(self) -> dict[str, Any]:
        return self._buffer.state_dict()

    @endpoint
    async def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._buffer.load_state_dict(state)
