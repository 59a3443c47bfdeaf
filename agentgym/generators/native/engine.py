"""The native engine: weights, model and cache behind the scheduler."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from agentgym.errors import UserError
from agentgym.families.registry import read_dense
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.invariant import PIECE, InvariantModel, check_invariance
from agentgym.generators.native.model import DecoderModel
from agentgym.generators.native.scheduler import Scheduler
from agentgym.generators.native.versions import VersionedScheduler
from agentgym.generators.native.weights import DecoderWeights, fuse
from agentgym.generators.threaded import ThreadedEngine
from agentgym.models.safetensors import read_folder


class NativeEngine(ThreadedEngine[DecoderWeights]):
    """A dense model of a known family, from a local Hugging Face folder; implements `GeneratorEngine`.

    It holds several versions of the weights for requests that name one.
    """

    _scheduler: VersionedScheduler

    def __init__(self, config: GeneratorConfig, model_path: str) -> None:
        self._architecture = read_dense(Path(model_path))
        super().__init__(
            config, model_path, vocab_size=self._architecture.vocab_size, max_positions=self._architecture.max_positions
        )
        self._held: set[int] = set()
        if config.batch_invariant:
            self._refuse_variance()

    def holds(self, version: int) -> bool:
        """Whether requests may name this version."""
        return version in self._held

    async def hold(self, version: int, weights: Iterable[tuple[str, Tensor]] | None) -> None:
        """Let requests name a version. weights: None for those of the last update, which no other may overtake."""
        copied = None if weights is None else await asyncio.to_thread(self._taken, weights)
        self._held.add(version)
        self._commands.put(partial(self._scheduler.hold, version, copied))

    def retain(self, versions: Collection[int]) -> None:
        """Forget all versions but these: no request will name them."""
        self._held.intersection_update(versions)
        self._commands.put(partial(self._scheduler.retain, versions))

    def _load(self) -> VersionedScheduler:
        weights = self._copied(read_folder(self._folder))
        if self._config.batch_invariant:
            with torch.inference_mode():
                check_invariance(self._model(weights))
        return VersionedScheduler(self._make, weights)

    def _make(self, weights: DecoderWeights) -> Scheduler:
        config = self._config
        cache = KVCache(
            self._architecture,
            rows=2 * config.max_batch,  # the second half keeps the contexts that next turns continue
            max_len=self._max_len,
            device=self._device,
            dtype=self._dtype,
            bucket=PIECE if config.batch_invariant else 32,
        )
        # a CPU is fastest when one pass fits its caches, a GPU when it is filled
        max_padded_tokens = 1024 if self._device.type == "cpu" else 16_384
        return Scheduler(self._model(weights), cache, max_batch=config.max_batch, max_padded_tokens=max_padded_tokens)

    def _model(self, weights: DecoderWeights) -> DecoderModel:
        kind = InvariantModel if self._config.batch_invariant else DecoderModel
        return kind(self._architecture, weights, max_len=self._max_len)

    @property
    def _max_len(self) -> int:
        longest = self._config.max_model_len
        return -(-longest // PIECE) * PIECE if self._config.batch_invariant else longest

    def _refuse_variance(self) -> None:
        given = (self._device.type, self._config.dtype, self._config.threads)
        if given != ("cpu", "float32", 1):
            raise UserError(
                f"generator.device is {given[0]}, dtype {given[1]} and threads {given[2]}: loop.deterministic needs "
                "generator.device=cpu, dtype=float32 and threads=1, where a sequence's numbers do not depend on others"
            )

    def _copied(self, weights: Iterable[tuple[str, Tensor]]) -> DecoderWeights:
        return fuse(self._architecture, weights, device=self._device, dtype=self._dtype)
