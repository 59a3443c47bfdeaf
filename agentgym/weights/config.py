"""The weight store's settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.components import component, name_of
from agentgym.contracts import check_made
from agentgym.plugin_errors import blamed
from agentgym.weights.store import WeightStore

if TYPE_CHECKING:
    from agentgym.actors.runtime import Runtime


class StoreConfig(ABC):
    """What `weights.store` chooses. Inherit it as a frozen dataclass: the fields are the store's own settings."""

    __slots__ = ()
    gpu_memory = False
    """Whether versions are in memory of the trainer's GPUs, and lost with its processes."""
    gpu_peers = False
    """Whether readers map that memory, and must see the trainer's GPUs."""

    @abstractmethod
    async def open(self, run: str, *, keep: int, runtime: Runtime | None) -> WeightStore:
        """The caller owns the store and closes it before the runtime.

        run: names it. keep: the newest versions that stay. runtime: where it may start processes; None is the
        one that was opened last. Raises UserError for a store that is not installed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsConfig:
    store: StoreConfig = component("weight_stores", "shared_memory")
    """How versions of the weights reach the generators: through shared memory, from GPU to GPU, or by TorchStore."""
    keep: int = 2
    """How many of the newest versions stay; a replica that is started again needs one."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"weights.keep is {self.keep}; give at least 1")

    async def open(self, run: str, *, runtime: Runtime | None = None) -> WeightStore:
        """The chosen store; see `StoreConfig.open`."""
        with blamed("weight_stores", self.store):
            store = await self.store.open(run, keep=self.keep, runtime=runtime)
        check_made(store, WeightStore, f"the weight store {name_of('weight_stores', self.store)!r}")
        return store
