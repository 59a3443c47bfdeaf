"""The actor that hosts a trainer engine on one or more processes."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from agentgym.actors.actor import ServiceActor
from agentgym.actors.runtime import endpoint
from agentgym.errors import InfraError
from agentgym.rl.losses import Loss
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.types import Sample
from agentgym.weights.store import WeightStore

if TYPE_CHECKING:
    from agentgym.trainer.engine import TitanEngine

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup:
    """What a trainer engine is built from. folder: for what torchtitan writes."""

    model_path: str
    trainer: TrainerConfig
    optimizer: OptimizerConfig
    loss: Loss
    total_steps: int
    folder: str
    random_weights: bool = False
    temperature: float = 1.0  # the sampler's


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStatus:
    """step: optimizer steps done. version: the last that was pushed."""

    rank: int
    pid: int
    step: int
    version: int


class TitanTrainer(ServiceActor):
    """Every endpoint is called on all processes at once, with the same arguments.

    The engine lives on one thread: CUDA keeps a current device per thread, collectives want one order, and
    the process goes on answering probes while it computes.
    """

    def __init__(self, setup: TrainerSetup, store: WeightStore | None) -> None:
        self._setup = setup
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._built: TitanEngine | None = None

    async def on_stop(self) -> None:
        await self._close()
        self._thread.shutdown(wait=False)

    def current_version(self) -> int | None:
        return None if self._built is None else self._built.version

    @endpoint
    async def setup(self) -> None:
        """Build the engine; joins the process group. Raises UserError for a model that can't be trained."""
        self._built = await self._run(self._build)

    @endpoint
    async def forward_backward(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Add the samples' gradient to what is there."""
        return await self._run(self._engine.forward_backward, samples)

    @endpoint
    async def train_step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Gradient and optimizer step; returns the metrics."""
        return await self._run(self._engine.train_step, samples)

    @endpoint
    async def clear_gradients(self) -> None:
        await self._run(self._engine.clear_gradients)

    @endpoint
    async def logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Of every token given those before it, [L] each; 0.0 at index 0."""
        return await self._run(self._engine.logprobs, samples)

    @endpoint
    async def push_weights(self, version: int) -> None:
        """Store the weights under a version; rank 0 writes what all ranks gather."""
        await self._run(self._push, version)

    @endpoint
    async def save(self, folder: str) -> None:
        await self._run(self._engine.save, folder)

    @endpoint
    async def load(self, folder: str) -> None:
        await self._run(self._engine.load, folder)

    @endpoint
    async def export_hf(self, folder: str) -> None:
        await self._run(self._engine.export_hf, folder)

    @endpoint
    async def get_config(self) -> TrainerConfig:
        return self._setup.trainer

    @endpoint
    async def get_status(self) -> TrainerStatus:
        engine = self._engine
        return TrainerStatus(rank=_rank(), pid=os.getpid(), step=engine.step, version=engine.version)

    @endpoint
    async def cleanup(self) -> None:
        """Leave the process group and free the engine."""
        await self._close()

    @property
    def _engine(self) -> TitanEngine:
        if self._built is None:
            raise InfraError("the trainer has no engine; call setup first")
        return self._built

    def _build(self) -> TitanEngine:
        from agentgym.trainer.engine import TitanEngine  # torch, only in this process

        setup = self._setup
        return TitanEngine(
            model_path=setup.model_path,
            # CUDA_VISIBLE_DEVICES names them already, so the engine counts from 0.
            trainer=replace(setup.trainer, gpus=()),
            optimizer=setup.optimizer,
            loss=setup.loss,
            total_steps=setup.total_steps,
            folder=setup.folder,
            random_weights=setup.random_weights,
            temperature=setup.temperature,
        )

    def _push(self, version: int) -> None:
        engine = self._engine
        weights = engine.hf_weights()
        try:
            if _rank() == 0:
                if self._store is None:
                    raise InfraError("this trainer was given no weight store to push to")
                asyncio.run(self._store.put(version, weights))
        finally:
            for _ in weights:  # a collective: the other ranks wait for every tensor, even after an error
                pass
        engine.version = version

    async def _close(self) -> None:
        if self._built is not None:
            engine, self._built = self._built, None
            await self._run(engine.close)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        context = contextvars.copy_context()  # Monarch keeps the current actor in it
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: context.run(function, *args))


def _rank() -> int:
    return int(os.environ["RANK"])  # set by the client before this process began, as torchrun does
