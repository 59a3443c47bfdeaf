"""The weight stores of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.errors import UserError
from agentgym.weights.config import StoreConfig
from agentgym.weights.store import WeightStore

if TYPE_CHECKING:
    from agentgym.actors.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemoryConfig(StoreConfig):
    """Files in a host's shared memory, which readers map; every further host fetches each version once."""

    async def open(self, run: str, *, keep: int, runtime: Runtime | None) -> WeightStore:
        from agentgym.weights.shared_memory import SharedMemoryStore

        if runtime is not None and runtime.hosts.elsewhere:
            from agentgym.weights.host_cache import HostCacheStore

            return await HostCacheStore.open(run, keep=keep, runtime=runtime)

        return SharedMemoryStore(run, keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaIpcConfig(StoreConfig):
    """On the trainer's GPU, from where the generators of the same host copy them GPU to GPU."""

    gpu_memory = True

    async def open(self, run: str, *, keep: int, runtime: Runtime | None) -> WeightStore:
        if runtime is not None and runtime.hosts.elsewhere:
            raise UserError(
                "weights.store is cuda_ipc, which works within one host; with several take shared_memory, which "
                "each host fills once, or torchstore"
            )
        from agentgym.weights.cuda_ipc import CudaIpcStore

        return CudaIpcStore(run, keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStoreConfig(StoreConfig):
    """TorchStore: a process that holds the weights, and hands them out as messages."""

    async def open(self, run: str, *, keep: int, runtime: Runtime | None) -> WeightStore:
        from agentgym.actors.runtime import current_runtime
        from agentgym.weights.torchstore_store import TorchStoreStore

        return await TorchStoreStore.open(run, keep=keep, runtime=runtime or current_runtime())
