"""The actor that hosts a generator engine in a process of its own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.actors.actor import ServiceActor
from agentgym.actors.calls import ActorDied
from agentgym.actors.endpoint import endpoint
from agentgym.components import name_of
from agentgym.contracts import check_made
from agentgym.errors import InfraError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import (
    GeneratorEngine,
    HoldsVersions,
    KnowsItsEnd,
    MergesAdapters,
    NotLoaded,
    ReadsBase,
    Sleeps,
)
from agentgym.plugin_errors import blamed
from agentgym.types import Completion, GenerateRequest
from agentgym.weights.store import StoredWeights, WeightStore

if TYPE_CHECKING:
    from torch import Tensor

    from agentgym.weights.adapters import Base

NOTHING_YET = -1  # the version of a replica whose folder is not version 0, until it loads one


class Generator(ServiceActor):
    """Requests run concurrently, and continue while new weights are loaded."""

    def __init__(
        self, config: GeneratorConfig, model_path: str, store: WeightStore, folder_is_first: bool = True
    ) -> None:
        """folder_is_first: whether the weights in the folder are version 0, as no quantized ones are."""
        self._loads_first = not folder_is_first
        self._config = config
        self._model_path = model_path
        self._store = store
        self._engine: GeneratorEngine | None = None
        self._base: Base | None = None
        self._updating = asyncio.Lock()
        self._asleep = False
        self._calls: dict[str, asyncio.Task[object]] = {}

    async def on_start(self) -> None:
        chosen = self._config.engine
        with blamed("generator_engines", chosen):
            engine = chosen.build(self._config, self._model_path)
        check_made(engine, GeneratorEngine, f"the generator engine {name_of('generator_engines', chosen)!r}")
        self._engine = engine
        with blamed("generator_engines", chosen):
            await engine.start()
        # else the collector walks through all of torch and vLLM every few ten thousand tokens, half a second each time
        gc.collect()
        gc.freeze()

    async def on_stop(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    def current_version(self) -> int | None:
        return None if self._engine is None else self._version

    @endpoint
    async def generate(self, request: GenerateRequest, call_id: str) -> Completion:
        """call_id: names the call for `cancel`."""
        task = asyncio.current_task()
        assert task is not None
        self._calls[call_id] = task
        try:
            if request.version is not None:
                await self._hold(request.version)
            with blamed("generator_engines", self._config.engine, passes=(ValueError,)):
                return await self._started().generate(request)
        except Exception:
            self._started()  # where the engine is dead, that is what the caller gets
            raise
        finally:
            del self._calls[call_id]

    @endpoint
    async def cancel(self, call_id: str) -> None:
        """End a call whose caller is gone, which frees its place in the batch. Never raises."""
        task = self._calls.get(call_id)
        if task is not None:
            task.cancel()

    @endpoint
    async def update_weights(self, version: int) -> int:
        """Load a version from the store; returns the version that is sampled from afterwards. Wakes the engine.

        Raises NotLoaded where it can't be read; the engine goes on as before.
        """
        async with self._updating:
            engine = self._started()
            if self._version != version or self._asleep:
                try:
                    weights = await self._weights(version)
                except (KeyError, InfraError, OSError) as error:
                    raise NotLoaded(f"the weights of version {version} can't be read: {error}") from error
                with blamed("generator_engines", self._config.engine):
                    await engine.update_weights(version, weights)
                self._asleep = self._loads_first = False
                if isinstance(engine, HoldsVersions):
                    engine.retain(await self._store.versions())
            elif isinstance(engine, ReadsBase):  # else the first update would wait for it
                with suppress(KeyError, InfraError, OSError):
                    stored = await self._store.get(version)
                    if isinstance(stored, StoredWeights):
                        await engine.read_base(stored)
            return self._version

    @endpoint
    async def sleep(self) -> None:
        """See `Sleeps.sleep`. Raises ValueError for an engine that can't."""
        async with self._updating:
            engine = self._started()
            if not isinstance(engine, Sleeps):
                raise ValueError(f"{type(engine).__name__} can't give its memory away")
            if not self._asleep:
                await engine.sleep()
                self._asleep = True

    @endpoint
    async def get_version(self) -> int:
        return self._version

    @endpoint
    async def metrics(self) -> dict[str, float]:
        return self._started().metrics()

    @endpoint
    async def get_vllm_config(self) -> object:
        """The engine's vLLM configuration; None for engines that are not vLLM."""
        return getattr(self._started(), "vllm_config", None)

    async def _hold(self, version: int) -> None:
        """Have a version in the engine for a request that names it; the store is where it comes from."""
        engine = self._started()
        if not isinstance(engine, HoldsVersions):
            raise ValueError(
                f"{type(engine).__name__} follows every update of the weights; no request can name a version"
            )
        async with self._updating:
            if not engine.holds(version):
                current = engine.version == version
                await engine.hold(version, None if current else await self._weights(version))

    async def _weights(self, version: int) -> Iterable[tuple[str, Tensor]]:
        """The weights as the engine takes them."""
        stored = await self._store.get(version)
        if isinstance(self._engine, MergesAdapters):
            return stored
        import torch

        from agentgym.weights.adapters import Base

        self._base = self._base or Base(Path(self._model_path))
        return await asyncio.to_thread(self._base.whole, stored, torch.device("cpu"))

    @property
    def _version(self) -> int:
        engine = self._started()
        return NOTHING_YET if self._loads_first else engine.version

    def _started(self) -> GeneratorEngine:
        """Raises ActorDied where the engine says that it is."""
        if self._engine is None:
            raise InfraError("the generator has not started")
        if isinstance(self._engine, KnowsItsEnd) and self._engine.failure:
            raise ActorDied(f"its engine is dead: {self._engine.failure}")
        return self._engine
