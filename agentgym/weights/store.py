"""The interface of a weight store: weights are kept under a version, for every process of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class WeightStore(Protocol):
    """Versions are written once, whole or not at all. Stores are picklable: actors get a copy."""

    process_imports: tuple[str, ...]
    """Modules that a process which gets a copy imports before its first actor; usually none."""

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Store weights under Hugging Face names. Raises ValueError when it has that version already."""

    async def get(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights of a version. Raises KeyError, which lists the versions that exist.

        Tensors may share memory with the store: copy them before the version is deleted.
        """

    async def delete(self, version: int) -> None:
        """Delete a version; one that does not exist is not an error."""

    async def versions(self) -> list[int]:
        """The versions that exist, oldest first."""

    async def close(self) -> None:
        """Free everything; only the owner calls it."""


async def delete_old(store: WeightStore, keep: int | None) -> None:
    """Delete all but the newest `keep` versions; None deletes none."""
    if keep is not None:
        for version in (await store.versions())[:-keep]:
            await store.delete(version)
