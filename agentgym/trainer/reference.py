"""Models that are only asked for log-probabilities, in processes of their own: the policy as it was at the start, and
teachers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace

from agentgym.actors.runtime import Runtime
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample


class ReferenceModel(TrainerClient):
    """A trainer that is never stepped: AdamW allocates its state at the first step, so it has none."""

    def __init__(self, setup: TrainerSetup, *, runtime: Runtime | None = None, name: str = "reference") -> None:
        """setup: the trainer's, so that log-probabilities are computed in the same way; of a teacher with its path."""
        self._scratch = tempfile.TemporaryDirectory(prefix=f"agentgym-{name}-")
        super().__init__(replace(setup, folder=self._scratch.name, critic=False), runtime=runtime, name=name)

    async def forward(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probability of every token given those before it, [L] each; 0.0 at index 0."""
        return await self.call(TitanTrainer.logprobs, samples)

    async def close(self) -> None:
        await super().close()
        self._scratch.cleanup()
