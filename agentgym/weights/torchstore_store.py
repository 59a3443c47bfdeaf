"""A weight store on TorchStore: weights live in a process of their own and travel as Monarch messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from agentgym.actors.runtime import ProcMesh, Runtime
from agentgym.errors import InfraError
from agentgym.weights import torchstore_patch  # before torchstore
from agentgym.weights.store import delete_old

if TYPE_CHECKING:
    from torch import Tensor

import torchstore

MANIFEST = "manifest"


class TorchStoreStore:
    """Made by `open`; copies in other processes read and write but never end it.

    A version's manifest is written last and removed first: without it the version does not exist.
    """

    process_imports: tuple[str, ...] = (torchstore_patch.__name__,)

    def __init__(self, name: str, *, keep: int | None) -> None:
        self.name = name
        self._keep = keep
        self._runtime: Runtime | None = None  # the owner's
        self._mesh: ProcMesh | None = None

    @classmethod
    async def open(cls, run: str, *, keep: int | None = None, runtime: Runtime) -> TorchStoreStore:
        """Start the process that holds the weights; the caller owns the store."""
        slug = re.sub(r"[^A-Za-z0-9]+", "_", run).strip("_") or "run"
        store = cls(f"weights_{slug}", keep=keep)
        store._runtime = runtime
        store._mesh = runtime.spawn("weights", imports=cls.process_imports)
        await torchstore.initialize(mesh=store._mesh, store_name=store.name)
        return store

    def __getstate__(self) -> dict[str, object]:
        return {"name": self.name, "_keep": self._keep, "_runtime": None, "_mesh": None}

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        if version in await self.versions():
            raise ValueError(f"version {version} is stored already and versions don't change")
        names: list[str] = []
        for name, tensor in weights:
            if name in names:
                raise ValueError(f"weights hold {name!r} twice")
            await torchstore.put(self._key(version, name), tensor.detach().cpu(), store_name=self.name)
            names.append(name)
        await torchstore.put(self._key(version, MANIFEST), names, store_name=self.name)
        await delete_old(self, self._keep)

    async def get(self, version: int) -> Iterator[tuple[str, Tensor]]:
        names = await self._names(version)
        if names is None:
            raise KeyError(f"no weights of version {version}; the store holds {await self.versions()}")
        try:
            tensors = [await torchstore.get(self._key(version, n), store_name=self.name) for n in names]
        except KeyError as error:
            raise KeyError(f"version {version} was deleted while it was read") from error
        return zip(names, tensors, strict=True)

    async def delete(self, version: int) -> None:
        names = await self._names(version)
        if names is not None:
            for name in (MANIFEST, *names):
                await torchstore.delete(self._key(version, name), store_name=self.name)

    async def versions(self) -> list[int]:
        client = await torchstore.client(self.name)
        ends = (key.rpartition("/") for key in await client.keys())
        return sorted(int(prefix) for prefix, _, end in ends if end == MANIFEST)

    async def close(self) -> None:
        if self._mesh is None or self._runtime is None:
            return
        mesh, self._mesh = self._mesh, None
        try:
            await torchstore.shutdown(self.name)
        except Exception as error:
            raise InfraError(f"TorchStore did not shut down: {error}") from error
        finally:
            await self._runtime.stop(mesh)

    async def _names(self, version: int) -> list[str] | None:
        if version not in await self.versions():
            return None
        names: list[str] = await torchstore.get(self._key(version, MANIFEST), store_name=self.name)
        return names

    def _key(self, version: int, name: str) -> str:
        return f"{version}/{name}"
