"""A generator engine that takes time and no processor: `places` sequences at a time, each token in `token_s`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.places import Places
from agentgym.types import Completion, FinishReason, GenerateRequest, VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced(EngineConfig):
    """start_s: until a replica answers, as loading a model takes."""

    token_s: float = 0.01
    start_s: float = 2.0

    def build(self, generator: GeneratorConfig, model_path: str) -> PacedEngine:
        return PacedEngine(self, generator.max_batch)


class PacedEngine:
    """Implements `GeneratorEngine`."""

    def __init__(self, settings: Paced, places: int) -> None:
        self._settings = settings
        self._places = Places(places)
        self._asked = 0
        self._tokens = 0
        self.version = 0

    async def start(self) -> None:
        await asyncio.sleep(self._settings.start_s)

    async def generate(self, request: GenerateRequest) -> Completion:
        count = request.sampling.max_tokens
        self._asked += 1
        try:
            async with self._places.held(continues=request.continues):
                await asyncio.sleep(count * self._settings.token_s)
        finally:
            self._asked -= 1
        self._tokens += count
        return Completion(
            completion_ids=(0,) * count,
            logprobs=(0.0,) * count,
            versions=(VersionSpan(version=self.version, start=0, end=count),),
            finish_reason=FinishReason.LENGTH,
        )

    async def update_weights(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.version = version

    def metrics(self) -> dict[str, float]:
        taken = self._places.taken_now
        return {
            "generator/tokens_total": float(self._tokens),
            "generator/running": float(taken),
            "generator/waiting": float(self._asked - taken),
            "generator/places": float(self._places.limit),
        }

    async def close(self) -> None:
        return None
