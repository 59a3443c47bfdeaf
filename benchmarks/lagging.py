"""Generators that stay a number of updates behind the trainer, to measure what staleness costs."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.rl.loop import TrainingLoop
from agentgym.rollout.generator import Generator
from agentgym.types import Completion, GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LaggingGenerator:
    """Loads the weights of `lag` versions before each one that is published. The store must keep lag + 1 versions."""

    generator: Generator
    lag: int

    @property
    def version(self) -> int:
        return self.generator.version

    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.generator.generate(request)

    async def update_weights(self, version: int) -> None:
        await self.generator.update_weights(max(0, version - self.lag))


def lag_behind(loop: TrainingLoop, lag: int) -> None:
    """Make the generators of a loop that has not run yet lag, and its bound allow it."""
    loop.generator = LaggingGenerator(generator=loop.generator, lag=lag)
    loop.staleness_bound = loop.config.max_staleness + lag
