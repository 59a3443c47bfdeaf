"""Models that are only asked for log-probabilities, in processes of their own: teachers, and a reference, which is the
policy as it was at the start or follows it."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from agentgym.actors.runtime import Runtime
from agentgym.rl.columns import SampleColumns
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample
from agentgym.weights.store import WeightStore

Scores: TypeAlias = list[tuple[float, ...]]
"""By sample, [L] each."""


class ReferenceModel(TrainerClient):
    """A trainer that is never stepped: AdamW allocates its state at the first step, so it has none.

    One that is lost is started again, with the weights that it had: those of its model, or where it follows the policy
    those that it wrote when it last did.
    """

    def __init__(
        self,
        setup: TrainerSetup,
        *,
        store: WeightStore | None = None,
        runtime: Runtime | None = None,
        name: str = "reference",
        early: bool = False,
    ) -> None:
        """setup: the trainer's, so that log-probabilities are computed in the same way; of a teacher with its path.

        store: where it finds the weights that it follows, see trainer.reference_every; without one it never moves.
        early: `begin` scores. Then the order in which episodes end decides who shares a row, and so the last bits.
        """
        self._scratch = tempfile.TemporaryDirectory(prefix=f"agentgym-{name}-")
        self._every = 0 if store is None else setup.trainer.reference_every
        self._mix = setup.trainer.reference_mix
        # Below the run's folder, which all hosts see. Two: a process needs the one that it was started from.
        self._kept = [Path(setup.folder).absolute() / f"{name}-{number}" for number in range(2)]
        gpus = setup.trainer.reference_gpus or setup.trainer.gpus
        trainer = replace(setup.trainer, lora=LoraConfig(), gpus=gpus)
        base = setup.base_path or setup.model_path
        setup = replace(
            setup, trainer=trainer, folder=self._scratch.name, critic=False, base_path=base, quantize="none"
        )
        restarts = setup.trainer.max_restarts
        super().__init__(setup, store=store if self.moves else None, runtime=runtime, name=name, max_restarts=restarts)
        self._early = early and not self.moves  # one that moves scores with the weights of the step
        self._full = trainer.data_ranks * trainer.rows_per_microbatch * trainer.seq_len
        self._waiting: dict[str, Sample] = {}
        self._begun: dict[str, tuple[asyncio.Task[Scores], int]] = {}

    @property
    def moves(self) -> bool:
        """Whether it follows the policy; a run then saves it with each checkpoint."""
        return self._every > 0

    async def start(self) -> None:
        if self.moves:
            await asyncio.to_thread(self._hold_model)
        await super().start()

    async def start_from(self, model: Path) -> None:
        """Begin again, in new processes, as what a checkpoint kept of it."""
        await self._stop()
        self._setup = replace(self._setup, model_path=str(model))
        await self.start()

    async def follow(self, step: int) -> None:
        """Take trainer.reference_mix of the weights that were published for a step, where this is one to follow."""
        if not self.moves or step % self._every:
            return
        kept = next(folder for folder in self._kept if str(folder) != self._setup.model_path)

        async def move() -> None:
            await self._ask(TrainerActor.follow, step, self._mix)
            if self._max_restarts:
                await self._ask(TrainerActor.export_hf, str(kept))

        await self._insist(move)  # a new process has moved by no part of it: it holds what was kept before
        if self._max_restarts:
            self._setup = replace(self._setup, model_path=str(kept))

    def begin(self, samples: Sequence[Sample]) -> None:
        """`forward` will ask for these, or `forget`: score them before that, as soon as they fill all ranks' rows."""
        if not self._early:
            return
        self._waiting |= {sample.sample_id: sample for sample in samples}
        if sum(len(sample.token_ids) for sample in self._waiting.values()) >= self._full:
            full, self._waiting = [*self._waiting.values()], {}
            task = asyncio.create_task(self._score(full, trained_only=True), name=f"{self._name} scores early")
            task.add_done_callback(lambda scored: scored.cancelled() or scored.exception())  # `forward` raises it
            self._begun |= {sample.sample_id: (task, index) for index, sample in enumerate(full)}

    def forget(self, samples: Sequence[Sample]) -> None:
        """Drops calls that began and will not be asked for."""
        for sample in samples:
            self._waiting.pop(sample.sample_id, None)
            self._begun.pop(sample.sample_id, None)

    async def forward(self, samples: Sequence[Sample], trained_only: bool = False) -> Scores:
        """Log-probability of every token given those before it, [L] each; 0.0 at index 0.

        trained_only: 0.0 at all others too, which takes less time. They may have begun; their masks are as they were.
        """
        if not trained_only:
            return await self._score(samples, trained_only=False)
        begun = [self._begun.get(sample.sample_id) for sample in samples]
        left = [sample for sample, early in zip(samples, begun, strict=True) if early is None]
        self.forget(samples)
        of_left = iter(await self._score(left, trained_only=True) if left else ())
        return [next(of_left) if early is None else (await early[0])[early[1]] for early in begun]

    async def _score(self, samples: Sequence[Sample], *, trained_only: bool) -> Scores:
        samples = await asyncio.to_thread(SampleColumns.of, samples)
        logprobs = await self.call(TrainerActor.logprobs, samples, trained_only)
        self._in_a_row = 0
        return logprobs

    async def close(self) -> None:
        scoring = {task for task, _ in self._begun.values()}
        for task in scoring:
            task.cancel()
        await asyncio.gather(*scoring, return_exceptions=True)
        await super().close()
        self._scratch.cleanup()
        if self.moves:
            self._drop_kept()

    def _hold_model(self) -> None:
        """A model that is the run's own, as when it was resumed, is in a checkpoint, which may be removed."""
        self._drop_kept()
        model, kept = Path(self._setup.model_path).absolute(), self._kept[0]
        if model.is_relative_to(kept.parent.parent):
            shutil.copytree(model, kept)
            self._setup = replace(self._setup, model_path=str(kept))

    def _drop_kept(self) -> None:
        for folder in self._kept:
            for path in (folder, folder.with_name(f"{folder.name}.partial")):
                shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class BaseOfTrainer:
    """The reference of a policy with adapters: its trainer without them. It has no processes of its own."""

    trainer: TrainerClient

    async def follow(self, step: int) -> None:
        """It stays what it is; see `Recipe.needs_reference_model`."""

    async def forward(self, samples: Sequence[Sample], trained_only: bool = False) -> Scores:
        """The log-probabilities, as `ReferenceModel.forward` gives them."""
        return await self.trainer.call(TrainerActor.base_logprobs, samples, trained_only)
