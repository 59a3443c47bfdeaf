"""The interface of a weight store: weights are kept under a version, for every process of the run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentgym.contracts import Contract
from agentgym.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

GPU_SUFFIX = ".gpu"
SENT_SUFFIX = ".sent"


class OtherBase(UserError):
    """A version is of adapters, and those of another model than the reader's."""


@runtime_checkable
class StoredWeights(Protocol):
    """Weights that any process of this host can read at `path`; see weights/reading.py."""

    path: Path

    def entries(self) -> Iterator[tuple[str, Tensor]]:
        """Names, types and shapes alone: tensors on torch's meta device."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A block of a weight that several ranks of a trainer share.

    shape: of the whole weight. begin: where the block begins in it. values: None on the ranks that do not store it.
    index: the block's number among the `count` of which the weight consists.
    """

    name: str
    shape: tuple[int, ...]
    begin: tuple[int, ...]
    values: Tensor | None
    index: int
    count: int


@runtime_checkable
class TakesParts(Protocol):
    """A store that every rank of a trainer writes its own parts to, so that none gathers the weights."""

    async def put_parts(self, version: int, parts: Iterable[Part]) -> list[str]:
        """Store the parts with values; returns the names of all. Raises ValueError as `WeightStore.put` does."""

    async def commit(self, version: int, names: Iterable[str]) -> None:
        """Make the version exist. One rank calls it when all have stored their parts."""


class WeightStore(Contract, Protocol):
    """Versions are written once, whole or not at all. Stores are picklable: actors get a copy."""

    process_imports: tuple[str, ...]
    """Modules that a process which gets a copy imports before its first actor; usually none."""

    @abstractmethod
    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Store weights under Hugging Face names. Raises ValueError when it has that version already."""

    @abstractmethod
    async def get(self, version: int) -> Iterable[tuple[str, Tensor]]:
        """The weights of a version. Raises KeyError, which lists the versions that exist.

        `StoredWeights` where the version is in memory of this host, which an engine's other processes can map too.
        Tensors may share memory with the store: copy them before the version is deleted.
        """

    @abstractmethod
    async def delete(self, version: int) -> None:
        """Delete a version; one that does not exist is not an error."""

    @abstractmethod
    async def versions(self) -> list[int]:
        """The versions that exist, oldest first."""

    @abstractmethod
    async def close(self) -> None:
        """Free everything; only the owner calls it."""


async def delete_old(store: WeightStore, keep: int | None) -> None:
    """Delete all but the newest `keep` versions; None deletes none."""
    if keep is not None:
        for version in (await store.versions())[:-keep]:
            await store.delete(version)
