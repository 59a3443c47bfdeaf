"""Builds the weight store that the recipe names."""

from __future__ import annotations

from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.weights.config import WeightsConfig
from agentgym.weights.shared_memory import SharedMemoryStore
from agentgym.weights.store import WeightStore

TORCHSTORE_PATCH = "agentgym.weights.torchstore_patch"


async def build_store(config: WeightsConfig, run: str, *, runtime: Runtime | None = None) -> WeightStore:
    """The caller owns the store and closes it before the runtime.

    run: names it. Raises UserError when TorchStore is asked for and not installed, InfraError when there is no
    shared memory.
    """
    if config.store == "torchstore":
        from agentgym.weights.torchstore_store import TorchStoreStore

        return await TorchStoreStore.open(run, keep=config.keep, runtime=runtime or current_runtime())
    return SharedMemoryStore(run, keep=config.keep)


def process_imports(store: WeightStore) -> tuple[str, ...]:
    """What a process that gets a copy of the store must import before its first actor."""
    return () if isinstance(store, SharedMemoryStore) else (TORCHSTORE_PATCH,)
