"""The actor around an engine."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from scripted import Scripted, ScriptedEngine

from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.weights.shared_memory import SharedMemoryStore
from agentgym.weights.store import StoredWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads(Scripted):
    """An engine that keeps a list for each of its tensors, and the names in versions that it reads its base from."""

    loaded: list[list[int]] = field(default_factory=list)
    read: list[list[str]] = field(default_factory=list)

    def build(self, generator: GeneratorConfig, model_path: str) -> LoadedEngine:
        return LoadedEngine(self)


class LoadedEngine(ScriptedEngine):
    merges_adapters = True

    async def start(self) -> None:
        self._settings.loaded.extend([] for _ in range(1000))

    async def read_base(self, weights: StoredWeights) -> None:
        self._settings.read.append([name for name, _ in weights.entries()])


async def test_what_is_loaded_at_the_start_is_never_walked_through_again(tmp_path: Path) -> None:
    engine, store = Loads(), SharedMemoryStore("heap", root=tmp_path)
    try:
        await Generator(GeneratorConfig(engine=engine), "model", store).on_start()
        assert not any(thing is engine.loaded[0] for thing in gc.get_objects())  # of those that it looks at
    finally:
        gc.unfreeze()
    assert any(thing is engine.loaded[0] for thing in gc.get_objects())


async def test_an_engine_begins_to_read_its_base_with_the_version_that_it_starts_with(tmp_path: Path) -> None:
    engine, store = Loads(), SharedMemoryStore("reads", root=tmp_path)
    generator = Generator(GeneratorConfig(engine=engine), "model", store)
    update: Any = Generator.update_weights
    try:
        await generator.on_start()
        assert await update.plain_method(generator, 0) == 0 and engine.read == [], "version 0 is stored nowhere"
        await store.put(0, [("a", torch.ones(2))])
        await store.put(1, [("b", torch.ones(2))])
        assert await update.plain_method(generator, 0) == 0 and engine.read == [["a"]]
        assert await update.plain_method(generator, 1) == 1 and engine.read == [["a"]], "it is loaded"
    finally:
        gc.unfreeze()
        await store.close()
