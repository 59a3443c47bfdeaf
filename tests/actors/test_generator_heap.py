"""The actor around an engine."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from pathlib import Path

from scripted import Scripted, ScriptedEngine

from agentgym.generators.actor import Generator
from agentgym.generators.config import GeneratorConfig
from agentgym.weights.shared_memory import SharedMemoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads(Scripted):
    """An engine that keeps a list for each of its tensors."""

    loaded: list[list[int]] = field(default_factory=list)

    def build(self, generator: GeneratorConfig, model_path: str) -> LoadedEngine:
        return LoadedEngine(self)


class LoadedEngine(ScriptedEngine):
    async def start(self) -> None:
        self._settings.loaded.extend([] for _ in range(1000))


async def test_what_is_loaded_at_the_start_is_never_walked_through_again(tmp_path: Path) -> None:
    engine, store = Loads(), SharedMemoryStore("heap", root=tmp_path)
    try:
        await Generator(GeneratorConfig(engine=engine), "model", store).on_start()
        assert not any(thing is engine.loaded[0] for thing in gc.get_objects())  # of those that it looks at
    finally:
        gc.unfreeze()
    assert any(thing is engine.loaded[0] for thing in gc.get_objects())
