"""The calls of a loop's own pieces: a replay buffer, rows of data sets, rewards of responses."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from agentgym.actors.process_group import ProcessGroup
from agentgym.loops.dataset import DatasetActor
from agentgym.loops.pieces import Pieces
from agentgym.loops.rewards import RewardActor, RewardService
from agentgym.loops.rows import Row
from agentgym.recipe import Recipe
from agentgym.rl.loop import oldest_version
from agentgym.rl.replay_buffer import ReplayBuffer
from agentgym.run.calls import Call
from agentgym.types import Group

ROWS_TIMEOUT_S = 300.0  # a hub may be slow


class BufferCalls:
    """Groups, or anything else, with the version of the weights that sampled them. It is in this process."""

    def __init__(self, buffer: ReplayBuffer[Any]) -> None:
        self.buffer = buffer
        self.add = Call(self._add)
        self.sample = Call(self._sample)
        self.evict = Call(self._evict)
        self.clear = Call(self._clear)
        self.numel = Call(self._numel)
        self.get_metrics = Call(self._metrics)
        self.state_dict = Call(self._state)
        self.load_state_dict = Call(self._load)

    @classmethod
    def of(cls, recipe: Recipe, pieces: Pieces) -> BufferCalls:
        loop = recipe.loop
        own = {"batch_size": loop.groups_per_step, "max_policy_age": loop.max_staleness, "seed": loop.seed}
        return cls(ReplayBuffer(**{**own, **pieces.replay_buffer}))

    async def _add(self, item: object, policy_version: int | None = None) -> None:
        """policy_version: of a group the oldest weights that sampled it, of another item its attribute."""
        if policy_version is None and isinstance(item, Group):
            policy_version = oldest_version(item)
        self.buffer.add(item, policy_version)

    async def _sample(self, curr_policy_version: int, batch_size: int | None = None) -> list[Any] | None:
        """batch_size items; None while there are too few. With dp_size above 1: [dp_size][batch_size]."""
        batch = self.buffer.sample(curr_policy_version, batch_size)
        return batch if batch is None or self.buffer.dp_size > 1 else batch[0]

    async def _evict(self, curr_policy_version: int) -> None:
        self.buffer.evict(curr_policy_version)

    async def _clear(self) -> None:
        self.buffer.clear()

    async def _numel(self) -> int:
        return len(self.buffer)

    async def _metrics(self) -> dict[str, float]:
        return self.buffer.get_metrics()

    async def _state(self) -> dict[str, Any]:
        return self.buffer.state_dict()

    async def _load(self, state: Mapping[str, Any]) -> None:
        self.buffer.load_state_dict(state)


class RowCalls:
    """Rows of data sets, from the process that reads them."""

    def __init__(self, actor: ProcessGroup[DatasetActor]) -> None:
        self._actor = actor
        self.sample = Call(self._sample)
        self.sample_many = Call(self._sample_many)
        self.state_dict = Call(self._state)
        self.load_state_dict = Call(self._load)

    async def _sample(self) -> Row | None:
        """None when all sources have ended."""
        return await self._actor.call_one(DatasetActor.sample, timeout_s=ROWS_TIMEOUT_S)

    async def _sample_many(self, count: int) -> list[Row]:
        """Fewer than count when all sources have ended."""
        return await self._actor.call_one(DatasetActor.sample_many, count, timeout_s=ROWS_TIMEOUT_S)

    async def _state(self) -> dict[str, Any]:
        return await self._actor.call_one(DatasetActor.state_dict, timeout_s=ROWS_TIMEOUT_S)

    async def _load(self, state: Mapping[str, Any]) -> None:
        await self._actor.call_one(DatasetActor.load_state_dict, state, timeout_s=ROWS_TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedPieces:
    """rows, responses: None where none were asked for."""

    buffer: BufferCalls
    rows: RowCalls | None
    responses: RewardService | None


async def start_pieces(pieces: Pieces, buffer: BufferCalls, stack: AsyncExitStack) -> StartedPieces:
    """Start the processes that they need, to be closed with the stack. Raises UserError for a mistake."""
    rows = responses = None
    if pieces.rows:
        actor = await DatasetActor.as_actor(tuple(pieces.rows), dict(pieces.row_settings))
        stack.push_async_callback(DatasetActor.shutdown, actor)
        rows = RowCalls(actor)
    if pieces.reward_functions:
        launch = RewardActor.options(num_replicas=pieces.reward_replicas)
        service = await launch.as_service(tuple(pieces.reward_functions))
        stack.push_async_callback(RewardActor.shutdown, service)
        responses = RewardService(service=service, timeout_s=pieces.reward_timeout_s)
    return StartedPieces(buffer=buffer, rows=rows, responses=responses)
