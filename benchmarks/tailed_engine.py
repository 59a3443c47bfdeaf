"""Generator engines whose completions have lengths with a heavy tail, whatever the weights: for random ones.

A recipe takes one by `generator.engine.name: tailed_engine:TailedVllm`, with this folder on PYTHONPATH. The length of a
completion follows from its seed: log-normal, its median a share of what was asked for, its longest all of it. One
without a seed, as `agentgym plan --measure` times them, has what was asked for. The reward `tailed_engine:short` pays
for being short, so that every group has something to learn from.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from agentgym import reward
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import NativeEngineConfig, VllmEngineConfig
from agentgym.types import Completion, Episode, GenerateRequest

MEDIAN, SIGMA = 0.13, 1.0
Generate = Callable[[GenerateRequest], Awaitable[Completion]]


def shortened(request: GenerateRequest) -> GenerateRequest:
    if request.sampling.seed is None:
        return request
    share = min(1.0, random.Random(request.sampling.seed).lognormvariate(math.log(MEDIAN), SIGMA))
    most = max(1, round(share * request.sampling.max_tokens))
    return replace(request, sampling=replace(request.sampling, max_tokens=most))


@reward
def short(episode: Episode) -> float:
    """1 for an episode that says nothing, half of it for one of 500 characters: rewards see no token ids."""
    return 1 / (1 + sum(len(str(said["content"])) for said in episode.messages if said["role"] == "assistant") / 500)


class _Tailed:
    """Everything is the engine's, but for the lengths. Implements `GeneratorEngine`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: GenerateRequest) -> Completion:
        found: Completion = await self._engine.generate(shortened(request))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TailedVllm(VllmEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return _Tailed(VllmEngineConfig.build(self, generator, model_path))


@dataclass(frozen=True, slots=True, kw_only=True)
class TailedNative(NativeEngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return _Tailed(NativeEngineConfig.build(self, generator, model_path))
