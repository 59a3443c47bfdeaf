"""The actor that hosts a trainer engine on one or more processes."""

from __future__ import annotations

import asyncio
import contextvars
import os
import pickle
import shutil
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint
from agentgym.actors.gpu_turn import HeldGpus
from agentgym.errors import InfraError, UserError
from agentgym.models.out_of_memory import out_of_memory
from agentgym.runs.files import publish
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.garbage import Garbage
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample
from agentgym.weights.store import TakesParts, WeightStore

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym.trainer.engine import TrainingEngine
    from agentgym.trainer.own_tensors import Batch
    from agentgym.trainer.parts import PutParts

T = TypeVar("T")


class TrainerBroken(InfraError):
    """A process lives but can't go on: it lost a peer, or its device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStatus:
    """step: optimizer steps done. version: the last that was pushed."""

    rank: int
    pid: int
    step: int
    version: int


class TrainerActor(ServiceActor):
    """Every endpoint is called on all processes at once, with the same arguments, but for samples: what a process does
    not read is empty in those that it gets, see `Share`. Rank 0 alone returns scores.

    A process that runs out of memory raises OutOfMemory, which ends the run: others in its place would need the same.
    The engine lives on one thread: CUDA keeps a current device per thread, collectives need one order, and the
    process still answers probes while it computes.
    """

    def __init__(self, setup: TrainerSetup, store: WeightStore | None) -> None:
        self._setup = setup
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._built: TrainingEngine | None = None
        self._garbage = Garbage()
        self._held: HeldGpus | None = None

    async def on_start(self) -> None:
        """Next its client calls `setup`, with a deadline of its own."""
        if self._setup.warm_up:
            self._held = HeldGpus()

    async def on_stop(self) -> None:
        await self._close()
        self._thread.shutdown(wait=False)

    def current_version(self) -> int | None:
        return None if self._built is None else self._built.version

    @endpoint
    async def prepare(self) -> None:
        """Load what `setup` needs, which takes seconds and no memory of a GPU."""
        await self._run(self._load_libraries)

    @endpoint
    async def setup(self) -> None:
        """Build the engine; joins the process group. Raises UserError for a model that can't be trained."""
        self._built = await self._run(self._build)

    @endpoint
    async def warm_up(self) -> None:
        """Compile what a step computes; from then on vLLM on the same GPUs waits no longer."""
        await self._run(self._warm_up)
        if self._held is not None:
            self._held.release()

    @endpoint
    async def forward_backward(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Add the samples' gradient to the current one."""
        return await self._run(self._engine.forward_backward, samples)

    @endpoint
    async def optimizer_step(self) -> dict[str, float]:
        """Step by the gradient that `forward_backward` has added up, and clear it."""
        return await self._run(self._step, self._engine.optimizer_step)

    @endpoint
    async def train_step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One optimizer step; returns the metrics."""
        return await self._run(self._step, self._engine.train_step, samples)

    @endpoint
    async def own_samples(self, lengths: array[int], step: bool) -> array[int]:
        """Which samples this process reads, by index; see `TrainingEngine.own_samples`."""
        return array("q", await self._run(lambda: self._engine.own_samples(lengths, step=step)))

    @endpoint
    async def own_step(self, inputs: Batch, targets: Batch, loss: bytes) -> dict[str, float]:
        """One optimizer step by the user's own tensors. loss: by value, as `by_value` gives it."""
        return await self._run(self._step, self._engine.own_step, inputs, targets, pickle.loads(loss))

    @endpoint
    async def set_rate(self, rate: float) -> None:
        """Another optimizer.lr for the next steps; the schedule stays."""
        await self._run(self._engine.set_rate, rate)

    @endpoint
    async def trained_logprobs(self) -> array[float]:
        """Log-probabilities of the tokens that the last step trained, in the order of its samples; see
        TrainerSetup.keep_logprobs.
        """
        return await self._run(self._engine.trained_logprobs) if self._engine.is_first else array("f")

    @endpoint
    async def release_memory(self) -> None:
        """Give back the GPU's memory that is kept for the next step's activations."""
        from agentgym.trainer.machine import release_memory  # torch, only in this process

        await self._run(release_memory)

    @endpoint
    async def clear_gradients(self) -> None:
        await self._run(self._engine.clear_gradients)

    @endpoint
    async def logprobs(self, samples: Sequence[Sample], trained_only: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of every token given those before it, [L] each; 0.0 at index 0. trained_only: 0.0 at all
        others too.
        """
        return await self._run(self._engine.logprobs, samples, trained_only, self._engine.is_first)

    @endpoint
    async def base_logprobs(self, samples: Sequence[Sample], trained_only: bool = False) -> list[tuple[float, ...]]:
        """The log-probabilities of the model without its adapters."""
        return await self._run(self._engine.base_logprobs, samples, trained_only, self._engine.is_first)

    @endpoint
    async def values(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """What the critic expects before each trained token, [L] each; 0.0 elsewhere."""
        return await self._run(self._engine.values, samples, self._engine.is_first)

    @endpoint
    async def push_weights(self, version: int) -> None:
        """Store the weights under a version. Raises ValueError when the store holds that version already."""
        await self._run(self._push, version)

    @endpoint
    async def follow(self, version: int, share: float) -> None:
        """Move the weights by `share` of the way to those that the store has under the version."""
        await self._run(self._follow, version, share)

    @endpoint
    async def save(self, folder: str) -> None:
        """Write everything that is needed to continue."""
        await self._run(self._engine.save, folder)

    @endpoint
    async def begin_save(self, folder: str, hf_folder: str) -> None:
        """Copy what `save` and `export_hf` write; a thread writes it while other calls are made."""
        await self._run(self._engine.begin_save, folder, hf_folder)

    @endpoint
    async def save_is_written(self) -> bool:
        """Whether `finish_save` would not wait."""
        return self._engine.saver.is_written

    @endpoint
    async def finish_save(self) -> dict[str, float]:
        """Wait for what `begin_save` began; its metrics, none where this process began none."""
        return await self._run(self._engine.saver.finish)

    @endpoint
    async def keep_versions(self, folder: str, versions: Sequence[int]) -> None:
        """Write versions of the weights store, as the generators have them, into a folder, a file each."""
        await self._run(self._keep_versions, Path(folder), versions)

    @endpoint
    async def restore_versions(self, folder: str, versions: Sequence[int]) -> None:
        """Put what `keep_versions` wrote back into the weight store."""
        await self._run(self._restore_versions, Path(folder), versions)

    @endpoint
    async def load(self, folder: str) -> None:
        """Continue from what `save` wrote."""
        await self._run(self._engine.load, folder)

    @endpoint
    async def export_hf(self, folder: str) -> None:
        """Write a Hugging Face folder."""
        await self._run(self._engine.export_hf, folder)

    @endpoint
    async def get_config(self) -> TrainerConfig:
        return self._setup.trainer

    @endpoint
    async def get_machine(self) -> dict[str, str]:
        """What the numbers of a step depend on besides its data and settings."""
        return await self._run(self._engine.describe_machine)

    @endpoint
    async def hold_version(self, version: int) -> None:
        """Take the weights for those published under a version, without storing them: for steps trained again."""
        self._engine.version = version

    @endpoint
    async def hold_moved(self, version: int) -> None:
        """Holds weights that steps have changed since they were published; see `hold_version`."""
        self._engine.hold_moved(version)

    @endpoint
    async def get_status(self) -> TrainerStatus:
        engine = self._engine
        rank = int(os.environ["RANK"])  # set by the client before this process began, as torchrun does
        return TrainerStatus(rank=rank, pid=os.getpid(), step=engine.step, version=engine.version)

    @endpoint
    async def cleanup(self) -> None:
        """Leave the process group and free the engine."""
        await self._close()

    @property
    def _engine(self) -> TrainingEngine:
        if self._built is None:
            raise InfraError("the trainer has no engine; call setup first")
        return self._built

    def _load_libraries(self) -> None:
        from agentgym.trainer.build import load_libraries  # torch, only in this process

        load_libraries(self._setup.trainer)

    def _build(self) -> TrainingEngine:
        from agentgym.trainer.engine import TrainingEngine  # torch, only in this process

        # CUDA_VISIBLE_DEVICES selects the GPUs already, so the engine counts from 0.
        return TrainingEngine(replace(self._setup, trainer=replace(self._setup.trainer, gpus=())))

    def _warm_up(self) -> None:
        from agentgym.trainer.warm_up import warm_up  # torch, only in this process

        warm_up(self._engine, self._setup)

    def _step(self, method: Callable[..., dict[str, float]], *args: object) -> dict[str, float]:
        metrics = method(*args)
        self._garbage.after_step()
        return metrics

    def _push(self, version: int) -> None:
        def store(weights: Iterator[tuple[str, Tensor]]) -> None:
            if self._store is None:
                raise InfraError("this trainer has no weight store to push to")
            asyncio.run(self._store.put(version, weights))

        self._engine.publish(version, store, self._parts(version))

    def _parts(self, version: int) -> PutParts | None:
        """Takes this rank's parts of a version to the store; None for a store of whole weights."""
        from agentgym.trainer.parts import PutParts  # torch

        if not isinstance(store := self._store, TakesParts):
            return None
        return PutParts(
            put=lambda parts: asyncio.run(store.put_parts(version, parts)),
            commit=lambda names: asyncio.run(store.commit(version, names)),
        )

    def _keep_versions(self, folder: Path, versions: Sequence[int]) -> None:
        from agentgym.models.safetensors import write_tensors

        if int(os.environ["RANK"]) or self._store is None:
            return
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for version in versions:
            with (partial / f"{version}.safetensors").open("w+b") as file:
                write_tensors(file, asyncio.run(self._store.get(version)))
        publish(partial, folder)

    def _restore_versions(self, folder: Path, versions: Sequence[int]) -> None:
        from agentgym.models.safetensors import WeightFile

        if int(os.environ["RANK"]) or self._store is None:
            return
        for version in versions:
            asyncio.run(self._store.put(version, WeightFile(folder / f"{version}.safetensors")))

    def _follow(self, version: int, share: float) -> None:
        if self._store is None:
            raise InfraError("this trainer has no weight store to read from")
        self._engine.follow(asyncio.run(self._store.get(version)), share)

    async def _close(self) -> None:
        if self._built is not None:
            engine, self._built = self._built, None
            await self._run(engine.close)

    async def _run(self, function: Callable[..., T], *args: object) -> T:
        context = contextvars.copy_context()  # Monarch keeps the current actor in it
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, lambda: context.run(function, *args))
        except (asyncio.CancelledError, UserError, ValueError):
            raise
        except BaseException as error:  # a checkpoint that a peer's death broke raises one that is no Exception
            from agentgym.trainer.parallel import lost_in

            if wanted := out_of_memory(error, self._setup.trainer.fields_to_lower()):
                raise wanted from error
            if lost := lost_in(error):
                raise TrainerBroken(f"rank {os.environ['RANK']} can't go on: {lost}") from error
            raise
