"""The actor around an engine."""

from __future__ import annotations

import gc
from types import SimpleNamespace

from agentgym.generators.actor import Generator


class FakeEngine:
    async def start(self) -> None:
        self.loaded = [[] for _ in range(1000)]


async def test_what_is_loaded_at_the_start_is_never_walked_through_again() -> None:
    engine = FakeEngine()
    config = SimpleNamespace(engine=SimpleNamespace(build=lambda config, path: engine))
    try:
        await Generator(config, "model", SimpleNamespace()).on_start()  # type: ignore[arg-type]
        assert not any(thing is engine.loaded[0] for thing in gc.get_objects())  # of those that it looks at
    finally:
        gc.unfreeze()
    assert any(thing is engine.loaded[0] for thing in gc.get_objects())
