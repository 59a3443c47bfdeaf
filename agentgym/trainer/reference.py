"""Models that are only asked for log-probabilities, in processes of their own: teachers, and a reference, which is the
policy as it was at the start or follows it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym.actors.runtime import Runtime
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample
from agentgym.weights.store import WeightStore


class ReferenceModel(TrainerClient):
    """A trainer that is never stepped: AdamW allocates its state at the first step, so it has none.

    One that is lost is simply started again: it has learned nothing. One that follows the policy ends the run, which
    continues from its checkpoint.
    """

    def __init__(
        self,
        setup: TrainerSetup,
        *,
        store: WeightStore | None = None,
        runtime: Runtime | None = None,
        name: str = "reference",
    ) -> None:
        """setup: the trainer's, so that log-probabilities are computed in the same way; of a teacher with its path.

        store: where it finds the weights that it follows; see trainer.reference_every.
        """
        self._scratch = tempfile.TemporaryDirectory(prefix=f"agentgym-{name}-")
        self._every, self._mix = setup.trainer.reference_every, setup.trainer.reference_mix
        trainer = replace(setup.trainer, lora=LoraConfig())
        setup = replace(setup, trainer=trainer, folder=self._scratch.name, critic=False)
        restarts = 0 if self.moves else setup.trainer.max_restarts
        store = store if self.moves else None
        super().__init__(setup, store=store, runtime=runtime, name=name, max_restarts=restarts)

    @property
    def moves(self) -> bool:
        """Whether it follows the policy; a run then saves it with each checkpoint."""
        return self._every > 0

    async def follow(self, step: int) -> None:
        """Take trainer.reference_mix of the weights that were published for a step, where this is one to follow."""
        if self.moves and step % self._every == 0:
            await self.call(TitanTrainer.follow, step, self._mix)

    async def forward(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probability of every token given those before it, [L] each; 0.0 at index 0."""
        logprobs = await self.call(TitanTrainer.logprobs, samples)
        self._in_a_row = 0
        return logprobs

    async def close(self) -> None:
        await super().close()
        self._scratch.cleanup()


@dataclass(frozen=True, slots=True)
class BaseOfTrainer:
    """The reference of a policy with adapters: its trainer without them. It has no processes of its own."""

    trainer: TrainerClient

    async def follow(self, step: int) -> None:
        """It stays what it is; see `Recipe.needs_reference_model`."""

    async def forward(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probability of every token given those before it, [L] each; 0.0 at index 0."""
        return await self.trainer.call(TitanTrainer.base_logprobs, samples)
