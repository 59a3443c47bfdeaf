"""The replay buffer as an actor, for items that come from several processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint
from agentgym.rl.replay_buffer import ReplayBuffer


class ReplayBufferActor(ServiceActor):
    """settings: those of `agentgym.rl.replay_buffer.ReplayBuffer`. Policies are names or import paths.

    One process holds the items: launch it `as_actor`, not as replicas.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    async def on_start(self) -> None:
        self._buffer: ReplayBuffer[Any] = ReplayBuffer(**self._settings)

    @endpoint
    async def add(self, item: object, policy_version: int | None = None) -> None:
        self._buffer.add(item, policy_version)

    @endpoint
    async def sample(self, curr_policy_version: int, batch_size: int | None = None) -> list[list[Any]] | None:
        """[dp_size][batch_size] items; None while there are too few."""
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
