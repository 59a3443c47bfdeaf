"""A weight store for GPUs of one host: a version is one buffer on the trainer's GPU, which the generators' map.

The file of a version holds no weights, only the memory's handle and where each tensor lies in it. Nothing passes
through the host's memory. Source: CUDA C++ Programming Guide, "Interprocess Communication".
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from agentgym.errors import InfraError
from agentgym.models.device import gpu_identity
from agentgym.models.gpu_segments import MappedMemory, mapped_memory
from agentgym.weights.flat import BUCKET_BYTES, Layout, buckets, checksums, fill, layout_of, num_bytes, once
from agentgym.weights.shared_memory import SharedMemoryStore
from agentgym.weights.store import GPU_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class _Handle:
    """device_uuid: the GPU, whose number differs between processes. parts: what torch opens the memory with."""

    device_uuid: str
    parts: tuple[object, ...]

    @classmethod
    def of(cls, buffer: Tensor) -> _Handle:
        _, *parts = buffer.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        return cls(device_uuid=gpu_identity(buffer.device.index), parts=tuple(parts))

    def open(self) -> Tensor:
        """The buffer, as bytes. Raises InfraError where this process does not see the GPU, or the memory is gone."""
        seen = [gpu_identity(index) for index in range(torch.cuda.device_count())]
        if self.device_uuid not in seen:
            raise InfraError(
                f"the weights are on GPU {self.device_uuid} and this process sees {seen or 'none'}: "
                "add it to CUDA_VISIBLE_DEVICES after its own, or use weights.store=shared_memory"
            )
        device = seen.index(self.device_uuid)
        try:
            storage = torch.UntypedStorage._new_shared_cuda(device, *self.parts)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise InfraError(
                f"the memory that the weights were in can't be opened; did its process end? {error}"
            ) from error
        return torch.empty(0, dtype=torch.uint8, device=f"cuda:{device}").set_(storage)


@dataclass(slots=True)
class _Slot:
    memory: MappedMemory
    handle: _Handle
    version: int | None = None

    @property
    def buffer(self) -> Tensor:
        return self.memory.data


@dataclass(slots=True)
class _Buffers:
    """The writing process's memory: one buffer for each version that is kept."""

    layout: Layout = field(default_factory=dict)
    slots: list[_Slot] = field(default_factory=list)


class GpuWeights:
    """A version on a GPU of this host: views of the trainer's buffer. Copy them before it is deleted."""

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError when the version was deleted."""
        self.path = path
        self._layout, self._handle, self._checksums = pickle.loads(path.read_bytes())

    def entries(self) -> Iterator[tuple[str, Tensor]]:
        return ((n, torch.empty(e.shape, dtype=e.dtype, device="meta")) for n, e in self._layout.items())

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Raises InfraError where the bytes are not those that were written."""
        buffer = self._handle.open()
        if checksums(buffer, buckets(self._layout, BUCKET_BYTES)) != self._checksums:
            deleted = "" if self.path.exists() else ": the version was deleted, and its memory written anew"
            raise InfraError(f"the weights in {self.path} are not those that were written{deleted}")
        return ((name, entry.view(buffer)) for name, entry in self._layout.items())


class CudaIpcStore(SharedMemoryStore):
    """Weights on a GPU. Only one process may `put`; its buffers take `keep` times the weights' size on its GPU."""

    suffix = GPU_SUFFIX

    def __init__(self, run: str, *, keep: int, **options: Path) -> None:
        super().__init__(run, keep=keep, **options)
        self._num_slots = keep
        self._buffers = _Buffers()

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"_buffers": _Buffers()}

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        path = self._path(version)
        if path.exists():
            raise ValueError(f"version {version} is stored already and versions don't change")
        slot = await self._free_slot()
        if slot is None:
            slot = self._first(weights)
        else:
            fill(slot.buffer, self._buffers.layout, weights)
        layout = self._buffers.layout
        sums = checksums(slot.buffer, buckets(layout, BUCKET_BYTES))
        torch.cuda.synchronize(slot.buffer.device)
        slot.version = version
        temporary = path.with_suffix(".part")
        temporary.write_bytes(pickle.dumps((layout, slot.handle, sums)))
        temporary.rename(path)

    async def get(self, version: int) -> GpuWeights:  # type: ignore[override]
        try:
            return GpuWeights(self._path(version))
        except FileNotFoundError:
            raise KeyError(f"no weights of version {version}; the store holds {await self.versions()}") from None

    async def _free_slot(self) -> _Slot | None:
        """None before anything is known of the weights."""
        buffers = self._buffers
        if not buffers.slots:
            return None
        if len(buffers.slots) < self._num_slots:
            return self._add_slot(buffers.slots[0].buffer.device)
        oldest = min(buffers.slots, key=lambda slot: -1 if slot.version is None else slot.version)
        if oldest.version is not None:
            await self.delete(oldest.version)  # before its memory changes: a reader looks whether it is still there
        oldest.version = None
        return oldest

    def _first(self, weights: Iterable[tuple[str, Tensor]]) -> _Slot:
        found = {name: tensor.detach().clone() for name, tensor in once(weights)}
        for name, tensor in found.items():
            if tensor.device.type != "cuda":
                raise InfraError(
                    f"weight {name!r} is on {tensor.device}; weights.store=cuda_ipc needs trainer.device=cuda"
                )
        self._buffers.layout.update(layout_of(found))
        slot = self._add_slot(tensor.device)
        fill(slot.buffer, self._buffers.layout, found.items())
        return slot

    def _add_slot(self, device: torch.device) -> _Slot:
        memory = mapped_memory(num_bytes(self._buffers.layout), device)
        slot = _Slot(memory, _Handle.of(memory.data))
        self._buffers.slots.append(slot)
        return slot
