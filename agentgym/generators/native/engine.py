"""The native engine: weights, model and cache behind the scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.model import DecoderModel
from agentgym.generators.native.scheduler import Scheduler
from agentgym.generators.native.weights import DecoderWeights, fuse
from agentgym.generators.threaded import ThreadedEngine
from agentgym.models.architecture import read_architecture
from agentgym.models.safetensors import read_folder


class NativeEngine(ThreadedEngine[DecoderWeights]):
    """A dense model of `FAMILIES` from a local Hugging Face folder; implements `GeneratorEngine`."""

    def __init__(self, config: GeneratorConfig, model_path: str) -> None:
        self._architecture = read_architecture(Path(model_path))
        super().__init__(
            config, model_path, vocab_size=self._architecture.vocab_size, max_positions=self._architecture.max_positions
        )

    def _load(self) -> Scheduler:
        weights = self._copied(read_folder(self._folder))
        model = DecoderModel(self._architecture, weights, max_len=self._config.max_model_len)
        cache = KVCache(
            self._architecture,
            rows=2 * self._config.max_batch,  # the second half keeps the contexts that next turns continue
            max_len=self._config.max_model_len,
            device=self._device,
            dtype=self._dtype,
        )
        # a CPU is fastest when one pass fits its caches, a GPU when it is filled
        max_padded_tokens = 1024 if self._device.type == "cpu" else 16_384
        return Scheduler(model, cache, max_batch=self._config.max_batch, max_padded_tokens=max_padded_tokens)

    def _copied(self, weights: Iterable[tuple[str, Tensor]]) -> DecoderWeights:
        return fuse(self._architecture, weights, device=self._device, dtype=self._dtype)
