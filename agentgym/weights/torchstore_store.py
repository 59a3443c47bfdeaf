"""A weight store on TorchStore: weights live in processes beside the trainer and travel as Monarch messages.

Each rank of a trainer puts what it holds of a weight, and readers assemble it: nobody gathers it before.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym.actors.runtime import ActorError, ProcMesh, Runtime
from agentgym.errors import InfraError
from agentgym.weights import torchstore_patch  # before torchstore
from agentgym.weights.flat import once
from agentgym.weights.store import Part, delete_old

if TYPE_CHECKING:
    from torch import Tensor

import torchstore
from torchstore.api import _controller
from torchstore.storage_volume import StorageVolume
from torchstore.transport import Pipe, Request, TensorSlice

MANIFEST = "manifest"
T = TypeVar("T")


class BesideTrainer(torchstore.TorchStoreStrategy):  # type: ignore[misc]  # TorchStore has no types
    """Each rank puts into a volume of its own host: hosts have equal numbers of ranks, in order, and of volumes."""

    def __init__(self, volumes: Sequence[Any]) -> None:
        super().__init__()
        self._volumes = volumes

    async def set_storage_volumes(self, storage_volumes: object) -> None:
        """Nothing: they are known, and of several meshes."""

    def select_storage_volume(self) -> tuple[Any, str]:
        rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        index = rank * len(self._volumes) // size
        return self._volumes[index], str(index)

    def get_storage_volume(self, volume_id: str) -> Any:
        return self._volumes[int(volume_id)]


class TorchStoreStore:
    """Made by `open`; copies in other processes read and write but never end it.

    A version's manifest is written last and removed first: without it the version does not exist.
    """

    process_imports: tuple[str, ...] = (torchstore_patch.__name__,)

    def __init__(self, name: str, *, keep: int | None, timeout_s: float, rdma: bool = False) -> None:
        self.name = name
        self._keep, self._timeout_s, self._rdma = keep, timeout_s, rdma
        self._runtime: Runtime | None = None  # the owner's
        self._meshes: list[ProcMesh] = []

    @classmethod
    async def open(
        cls, run: str, *, keep: int | None = None, runtime: Runtime, volumes: int = 1, timeout_s: float = 60.0
    ) -> TorchStoreStore:
        """Start the volumes, so many on each host of the trainer; the caller owns the store."""
        rdma = torchstore_patch.wants_rdma(os.environ)
        torchstore_patch.use_rdma(rdma)
        slug = re.sub(r"[^A-Za-z0-9]+", "_", run).strip("_") or "run"
        store = cls(f"weights_{slug}", keep=keep, timeout_s=timeout_s, rdma=rdma)
        store._runtime = runtime
        named = runtime.hosts.config.trainer
        hosts = runtime.hosts.choose("trainer", len(named) or 1)
        if not hosts:
            raise InfraError("every host that the weights may be on is lost")
        actors = []
        for number, host in enumerate(host for host in hosts for _ in range(volumes)):
            mesh = runtime.spawn(f"weights-{number}" if number else "weights", hosts=host, imports=cls.process_imports)
            host.processes -= 1  # they compute nothing, and the trainer shall come to the same host
            store._meshes.append(mesh)
            actors.append(await StorageVolume.spawn(1, mesh, id_func=_volume))
        controller = await _controller(store.name)
        await controller.init.call(
            strategy=BesideTrainer(actors), num_storage_volumes=len(actors), storage_volumes=None
        )
        return store

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_runtime": None, "_meshes": []}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__ |= state
        torchstore_patch.use_rdma(self._rdma)

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        whole = (
            Part(name=name, shape=tuple(one.shape), begin=(0,) * one.ndim, values=one.detach(), index=0, count=1)
            for name, one in once(weights)
        )
        await self.commit(version, await self.put_parts(version, whole))

    async def put_parts(self, version: int, parts: Iterable[Part]) -> list[str]:
        if version in await self.versions():
            raise ValueError(f"version {version} is stored already and versions don't change")
        names: dict[str, None] = {}
        client = await self._answer(torchstore.client(self.name))
        for part in parts:
            names[part.name] = None
            if part.values is not None:
                await self._answer(_put(client, self._key(version, part.name), part, part.values.cpu()))
        return list(names)

    async def commit(self, version: int, names: Iterable[str]) -> None:
        await self._answer(torchstore.put(self._key(version, MANIFEST), list(names), store_name=self.name))
        await delete_old(self, self._keep)

    async def get(self, version: int) -> Iterator[tuple[str, Tensor]]:
        names = await self._names(version)
        if names is None:
            raise KeyError(f"no weights of version {version}; the store holds {await self.versions()}")
        try:
            tensors = [
                await self._answer(torchstore.get(self._key(version, name), store_name=self.name)) for name in names
            ]
        except KeyError as error:  # TorchStore raises it for every failure of its index
            if version in await self.versions():
                raise InfraError(f"TorchStore lost weights of version {version}: {error}") from error
            raise KeyError(f"version {version} was deleted while it was read") from error
        return zip(names, tensors, strict=True)

    async def delete(self, version: int) -> None:
        names = await self._names(version)
        if names is not None:
            for name in (MANIFEST, *names):
                await self._answer(torchstore.delete(self._key(version, name), store_name=self.name))

    async def versions(self) -> list[int]:
        client = await self._answer(torchstore.client(self.name))
        ends = (key.rpartition("/") for key in await self._answer(client.keys()))
        return sorted(int(prefix) for prefix, _, end in ends if end == MANIFEST)

    async def close(self) -> None:
        if self._runtime is None:
            return
        runtime, self._runtime = self._runtime, None
        try:
            await self._answer(torchstore.shutdown(self.name))
        finally:
            await asyncio.gather(*(runtime.stop(mesh) for mesh in self._meshes))

    async def _names(self, version: int) -> list[str] | None:
        if version not in await self.versions():
            return None
        names: list[str] = await self._answer(torchstore.get(self._key(version, MANIFEST), store_name=self.name))
        return names

    async def _answer(self, call: Awaitable[T]) -> T:
        """Raises InfraError where TorchStore's processes are gone, or silent."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError as error:
            raise InfraError(
                f"TorchStore did not answer within {self._timeout_s:g} s (weights.store.timeout_s)"
            ) from error
        except (ActorError, RuntimeError) as error:
            raise InfraError(f"TorchStore failed: {error}") from error

    def _key(self, version: int, name: str) -> str:
        return f"{version}/{name}"


def _volume() -> str:
    """Names of volumes are not asked for: `BesideTrainer` counts them."""
    return "volume"


async def _put(client: Any, key: str, part: Part, values: Tensor) -> None:
    """What TorchStore's client does with a DTensor, whose mesh would have to be of the CPU."""
    if values.untyped_storage().nbytes() > values.nbytes:
        values = values.clone()  # a message has all of a tensor's storage
    request = Request(tensor_val=values)
    if part.count > 1:
        shape = tuple(values.shape)
        request.tensor_slice = TensorSlice(part.begin, (part.index,), part.shape, shape, mesh_shape=(part.count,))
    volume, volume_id = client.strategy.select_storage_volume()
    await Pipe(volume).put_to_storage_volume(key, request)
    await client._controller.notify_put.call(key, request.meta_only(), volume_id)
