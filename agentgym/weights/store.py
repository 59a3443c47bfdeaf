"""The protocol of a weight store: weights under a version, for every process of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class WeightStore(Protocol):
    """Versions are written once, whole or not at all. Stores are picklable: actors get a copy."""

    @property
    def process_imports(self) -> tuple[str, ...]:
        """Modules that a process which gets a copy imports before its first actor; usually none."""
        ...

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Store weights under Hugging Face names. Raises ValueError when it has that version already."""
        ...

    async def get(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights of a version. Raises KeyError, which names the others, when it is missing.

        Tensors may share memory with the store: copy them before the version is deleted.
        """
        ...

    async def delete(self, version: int) -> None:
        """Delete a version; a missing one is not an error."""
        ...

    async def versions(self) -> list[int]:
        """The stored versions, oldest first."""
        ...

    async def close(self) -> None:
        """Free everything; only the owner calls it."""
        ...


async def delete_old(store: WeightStore, keep: int | None) -> None:
    """Delete all but the newest `keep` versions; None keeps all."""
    if keep is not None:
        for version in (await store.versions())[:-keep]:
            await store.delete(version)
