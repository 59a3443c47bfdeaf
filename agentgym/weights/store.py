"""What a weight store promises: weights live under a version and reach every process of the run."""

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
        """Store weights under Hugging Face names. Raises ValueError when the version is there already."""
        ...

    async def get(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """The weights of a version. Raises KeyError, naming what is there, when it is gone.

        Tensors may share memory with the store: copy them before the version is deleted.
        """
        ...

    async def delete(self, version: int) -> None:
        """Forget a version; one that is not there is no error."""
        ...

    async def versions(self) -> list[int]:
        """What is there, oldest first."""
        ...

    async def close(self) -> None:
        """Free everything; only the owner calls it."""
        ...


async def delete_old(store: WeightStore, keep: int | None) -> None:
    """Forget all but the newest `keep` versions; None forgets none."""
    if keep is not None:
        for version in (await store.versions())[:-keep]:
            await store.delete(version)
