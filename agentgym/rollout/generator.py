"""What a rollout needs from whoever samples tokens."""

from __future__ import annotations

from typing import Protocol

from agentgym.types import Completion, GenerateRequest


class Generator(Protocol):
    """Replicas of a generator engine behind one door."""

    @property
    def version(self) -> int:
        """The newest weights that every replica which answers holds."""
        ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Raises InfraError when no replica could answer, ValueError for a request that can't be served."""
        ...

    async def update_weights(self, version: int) -> None:
        """Returns when every replica that answers samples from `version`."""
        ...
