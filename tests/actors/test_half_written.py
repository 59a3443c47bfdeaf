"""Engines and stores of plugins that lack methods are named before a weight or a token goes through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from agentgym import UserError
from agentgym.generators.actor import Generator
from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.engine import GeneratorEngine
from agentgym.weights.config import StoreConfig, WeightsConfig


class DuckTyped:
    async def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class HalfEngine(EngineConfig):
    def build(self, generator: GeneratorConfig, model_path: str) -> Any:
        return DuckTyped()


@dataclass(frozen=True, kw_only=True)
class HalfStore(StoreConfig):
    async def open(self, run: str, *, keep: int, runtime: object) -> Any:
        return DuckTyped()


async def test_an_engine_or_a_store_of_weights_without_its_methods_is_refused_when_it_is_made() -> None:
    with pytest.raises(UserError, match=r"the weight store '.*:HalfStore' is not a complete .*`put`, `versions`"):
        await WeightsConfig(store=HalfStore()).open("run")
    generator = Generator(GeneratorConfig(engine=HalfEngine()), "", None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"generator engine '.*:HalfEngine' is not a complete .*`generate`"):
        await generator.on_start()
    with pytest.raises(UserError, match=r"does not define `close`, `generate`, `metrics`, `start`"):
        type("Inherits", (GeneratorEngine,), {})()
