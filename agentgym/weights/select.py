"""The weight stores of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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
    """Weights stay on the trainer's GPU, from where the generators of the same host copy them GPU to GPU."""

    gpu_memory = True
    gpu_peers = True

    async def open(self, run: str, *, keep: int, runtime: Runtime | None) -> WeightStore:
        if runtime is not None and runtime.hosts.elsewhere:
            raise UserError(
                "weights.store is cuda_ipc, which works within one host; with several take shared_memory, which "
                "each host fills once, or nccl"
            )
        from agentgym.weights.cuda_ipc import CudaIpcStore

        return CudaIpcStore(run, keep=keep)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclConfig(StoreConfig):
    """Weights stay on the trainer's GPU, from where they are broadcast to the generators, on any host."""

    gpu_memory = True

    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """`auto` is NCCL where trainer and generators have a GPU each, else gloo."""
    timeout_s: float = 30.0
    """Seconds of silence after which an update has failed."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ValueError(f"weights.store.timeout_s is {self.timeout_s:g}; give more than 0 seconds")

    async def open(self, run: str, *, keep: int, runtime: Runtime | None) -> WeightStore:
        from agentgym.actors.network import LOOPBACK, own_address
        from agentgym.weights.nccl import NcclStore

        hosts = [] if runtime is None else [host.address for host in runtime.hosts.all if host.address]
        address = own_address(hosts[0]) if hosts else LOOPBACK
        return NcclStore(run, keep=keep, address=address, backend=self.backend, timeout_s=self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStoreConfig(StoreConfig):
    """TorchStore: processes beside the trainer, its volumes, to which each trainer rank sends what it holds."""

    volumes: int = 1
    """Processes that hold the weights, on each of the trainer's hosts; the host's ranks are divided among them."""
    timeout_s: float = 60.0
    """Seconds after which an unanswered call for one tensor has failed."""

    def __post_init__(self) -> None:
        if self.volumes < 1 or self.timeout_s <= 0:
            raise ValueError(
                f"weights.store has volumes={self.volumes} and timeout_s={self.timeout_s:g}; give at least 1 volume "
                "and more than 0 seconds"
            )

    async def open(self, run: str, *, keep: int, runtime: Runtime | None) -> WeightStore:
        from agentgym.actors.runtime import current_runtime
        from agentgym.weights.torchstore_store import TorchStoreStore

        runtime = runtime or current_runtime()
        return await TorchStoreStore.open(
            run, keep=keep, runtime=runtime, volumes=self.volumes, timeout_s=self.timeout_s
        )
