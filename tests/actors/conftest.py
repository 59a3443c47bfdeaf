"""Generators without a model, and their weights."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from in_process import InProcess

from agentgym.actors.launchers import Launcher
from agentgym.actors.runtime import Runtime
from agentgym.actors.settings import ServiceSettings
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService, Revive, service_settings
from agentgym.types import Completion, GenerateRequest, SamplingParams
from agentgym.weights.shared_memory import SharedMemoryStore

# Spawned processes import the actors of these tests by name, so their folder must be on the path of all.
HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))

from scripted import Scripted, fingerprint, scripted_tokens  # noqa: E402


class Fleet:
    """Replicas of the scripted engine with a store of their own."""

    def __init__(self, generators: GeneratorService, store: SharedMemoryStore, vocab_size: int) -> None:
        self.generators = generators
        self.store = store
        self._vocab_size = vocab_size

    async def publish(self, version: int) -> None:
        await self.store.put(version, self.weights(version))
        await self.generators.update_weights(version)

    def weights(self, version: int) -> list[tuple[str, torch.Tensor]]:
        return [("w", torch.full((1000,), float(version)))]

    def request(self, number: int, *, max_tokens: int = 4) -> GenerateRequest:
        return GenerateRequest(prompt_ids=(1, number), sampling=SamplingParams(max_tokens=max_tokens, seed=number))

    async def running(self, count: int) -> None:
        """Wait until the engines have so many requests."""
        async with asyncio.timeout(60):
            while (await self.generators.metrics()).get("generator/running") != count:
                await asyncio.sleep(0.02)

    def expected(self, request: GenerateRequest, version: int) -> tuple[int, ...]:
        """What the request must give under the weights of a version."""
        mark = fingerprint(self.weights(version)) if version else 0
        sampling = request.sampling
        return scripted_tokens(request.prompt_ids, sampling.seed, mark, sampling.max_tokens, self._vocab_size)

    def versions_of(self, completion: Completion) -> set[int]:
        return {span.version for span in completion.versions}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., object]]:
    @asynccontextmanager
    async def make(
        engine: Scripted | None = None,
        config: GeneratorConfig | None = None,
        settings: ServiceSettings | None = None,
        store_class: type[SharedMemoryStore] = SharedMemoryStore,
        revive: Revive | None = None,
        launcher: Launcher | None = None,
    ) -> AsyncIterator[Fleet]:
        """launcher: InProcess by default; LocalLauncher for what more than the death of a process is about."""
        engine = engine or Scripted()
        config = replace(config or GeneratorConfig(probe_every_s=0.3, probe_timeout_s=30), engine=engine)
        async with Runtime(log_dir=tmp_path / "logs", launcher=launcher or InProcess()) as runtime:
            store = store_class("test", root=tmp_path)
            generators = GeneratorService(
                config=config,
                store=store,
                model_path="",
                runtime=runtime,
                settings=settings or service_settings(config),
                revive=revive,
            )
            try:
                await generators.start()
                yield Fleet(generators, store, engine.vocab_size)
            finally:
                await generators.close()
                await store.close()

    return make
