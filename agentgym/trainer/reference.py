"""The reference model: the policy as it was at the start, in a process of its own, asked for log-probabilities."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

from agentgym.actors.runtime import Runtime
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.types import Sample


class ReferenceModel:
    """The trainer's engine, never stepped: AdamW allocates its state at the first step, so it has none."""

    def __init__(
        self,
        *,
        model_path: str,
        trainer: TrainerConfig,
        temperature: float = 1.0,
        runtime: Runtime | None = None,
    ) -> None:
        """trainer, temperature: as the trainer's, so that both compute log-probabilities in the same way."""
        self._scratch = tempfile.TemporaryDirectory(prefix="agentgym-reference-")
        self._client = TrainerClient(
            model_path=model_path,
            trainer=trainer,
            optimizer=OptimizerConfig(lr=0.0),
            loss=CrossEntropy(),
            total_steps=1,
            folder=self._scratch.name,
            temperature=temperature,
            runtime=runtime,
            name="reference",
        )

    async def start(self) -> None:
        await self._client.start()

    async def forward(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probability of every token given those before it, [L] each; 0.0 at index 0."""
        return await self._client.logprobs(samples)

    def pids(self) -> list[int]:
        return self._client.pids()

    async def close(self) -> None:
        await self._client.close()
        self._scratch.cleanup()
