"""What a rollout needs from a generator."""

from __future__ import annotations

from typing import Protocol

from agentgym.types import Completion, GenerateRequest


class Generator(Protocol):
    """Replicas of a generator engine behind one interface."""

    @property
    def version(self) -> int:
        """The newest version of the weights that every answering replica holds."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Raises InfraError when no replica could answer, ValueError for a request that cannot be served.

        A completion that takes longer than request.time_s ends there.
        """
        ...

    async def update_weights(self, version: int) -> None:
        """Returns when every answering replica samples from `version`."""
        ...
