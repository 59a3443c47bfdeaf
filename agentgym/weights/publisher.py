"""The sending side of the store `nccl`: versions in buffers of the trainer's rank 0, broadcast to who asks for them.

A thread answers the readers' connections. Those that ask for the same version at about the same time are one
communicator, which stays as long as its members do. Where one of them is lost, the others are asked to come again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait

import torch
from torch import Tensor

from agentgym.weights.collective import Communicator, open_store, own_gpu
from agentgym.weights.flat import Bucket, Layout, buckets, checksums, fill, layout_of, num_bytes, once
from agentgym.weights.listening import Listening

log = logging.getLogger(__name__)

CPU = "cpu"  # of a reader without a GPU
GATHER_S = 1.0  # after the first that asks: the other readers that are connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a reader must know of a version."""

    layout: Layout
    buckets: list[Bucket]
    checksums: list[int]


@dataclass(slots=True, kw_only=True)
class _Slot:
    buffer: Tensor
    version: int | None = None
    checksums: list[int] = field(default_factory=list)
    busy: threading.Lock = field(default_factory=threading.Lock)  # while it is filled or sent


@dataclass(slots=True, kw_only=True, eq=False)
class _Reader:
    """gpu: empty for who only asks what there is. wants: a version and its first bucket. took: a version before."""

    line: Connection
    gpu: str = ""
    wants: tuple[int, int] | None = None
    since_s: float = 0.0
    took: int | None = None


class Lost(Exception):
    """A reader left in the middle."""


class Publisher:
    """Publishes the weights of one process. A buffer does not change while it is sent; `put` fills another."""

    def __init__(
        self, address: str, token: bytes, *, keep: int, backend: str, timeout_s: float, bucket_bytes: int
    ) -> None:
        self._address, self._keep, self._backend, self._timeout_s = address, keep, backend, timeout_s
        self._bucket_bytes = bucket_bytes
        self._layout: Layout = {}
        self._buckets: list[Bucket] = []
        self._slots: list[_Slot] = []
        self._readers: list[_Reader] = []
        self._group: tuple[list[_Reader], Communicator] | None = None
        self._last: int | None = None  # that was sent
        self._woken, self._wake = Pipe(duplex=False)
        threading.Thread(target=self._answer, name="weights-publisher", daemon=True).start()
        self.listens_at = Listening(address, token, self._welcome).listens_at

    def versions(self) -> list[int]:
        return sorted(slot.version for slot in self._slots if slot.version is not None)

    def delete(self, version: int) -> None:
        for slot in self._slots:
            if slot.version == version:
                slot.version = None

    def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Raises ValueError for a version that is there, and for weights that are not those of the first."""
        if version in self.versions():
            raise ValueError(f"version {version} is stored already and versions don't change")
        if not self._slots:
            first = {name: tensor.detach().clone() for name, tensor in once(weights)}
            self._layout = layout_of(first)
            self._buckets = buckets(self._layout, self._bucket_bytes)
            device = next(iter(first.values())).device
            self._slots.append(self._new_slot(device))
            weights = first.items()
        slot = self._free_slot()
        with slot.busy:
            fill(slot.buffer, self._layout, weights)
            slot.checksums = checksums(slot.buffer, self._buckets)
            slot.version = version

    def _new_slot(self, device: torch.device) -> _Slot:
        return _Slot(buffer=torch.zeros(num_bytes(self._layout), dtype=torch.uint8, device=device))

    def _free_slot(self) -> _Slot:
        if all(slot.version is not None for slot in self._slots) and len(self._slots) < self._keep:
            self._slots.append(self._new_slot(self._slots[0].buffer.device))
        oldest = min(self._slots, key=lambda slot: (-1 if slot.version is None else slot.version, slot.busy.locked()))
        oldest.version = None
        return oldest

    def _welcome(self, line: Connection) -> None:
        self._readers.append(_Reader(line=line))
        self._wake.send(None)

    def _answer(self) -> None:
        while True:
            asking = [reader for reader in self._readers if reader.wants is not None]
            lines = [reader.line for reader in self._readers]  # of those that ask, too: they may die while they wait
            left_s = min((reader.since_s + GATHER_S - time.monotonic() for reader in asking), default=None)
            others = [r for r in self._readers if r.gpu and r.wants is None and r.took in (None, self._last)]
            if left_s is not None and (left_s <= 0 or not others):
                self._serve(asking)
                continue
            for line in wait([self._woken, *lines], left_s):
                if line is self._woken:
                    self._woken.recv()
                    continue
                self._read(next(reader for reader in self._readers if reader.line is line))

    def _read(self, reader: _Reader) -> bool:
        """Handle one message. False for a reader that is gone."""
        try:
            self._handle(reader, *reader.line.recv())
        except (OSError, EOFError):
            self._drop(reader)
            return False
        return True

    def _handle(self, reader: _Reader, what: str, *values: object) -> None:
        match what, values:
            case "versions", ():
                reader.line.send(self.versions())
            case "delete", (int(version),):
                self.delete(version)
                reader.line.send(None)
            case "contents", (int(version),):
                slot = self._slot(version)
                found = slot and Contents(layout=self._layout, buckets=self._buckets, checksums=slot.checksums)
                reader.line.send(found or self.versions())
            case "hello", (str(gpu),):
                reader.gpu = gpu
            case "want", (int(version), int(first)):
                reader.wants, reader.since_s = (version, first), time.monotonic()
            case _:
                raise EOFError(f"not a request: {what}")

    def _slot(self, version: int) -> _Slot | None:
        return next((slot for slot in self._slots if slot.version == version), None)

    def _drop(self, reader: _Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        reader.line.close()

    def _serve(self, asking: list[_Reader]) -> None:
        """Send the version that the first asked for to all that want it."""
        version = min(asking, key=lambda reader: reader.since_s).wants[0]  # type: ignore[index]
        members = [reader for reader in asking if reader.wants is not None and reader.wants[0] == version]
        first = min(reader.wants[1] for reader in members if reader.wants is not None)
        for reader in members:
            reader.took, reader.wants = version, None  # what it says from here on is its next wish
        slot = self._slot(version)
        with nullcontext() if slot is None else slot.busy:
            if slot is None or slot.version != version:
                self._notify(members, ("gone", self.versions()))
            else:
                self._last = version
                self._send_all(slot, members, first)

    def _send_all(self, slot: _Slot, members: list[_Reader], first: int) -> None:
        try:
            self._send(slot, members, first)
        except (Lost, OSError, RuntimeError, TimeoutError) as error:
            self._leave_group()
            self._notify(members, ("again", str(error)))

    def _send(self, slot: _Slot, members: list[_Reader], first: int) -> None:
        if slot.buffer.is_cuda:
            torch.cuda.set_device(slot.buffer.device)
        group = self._group_of(members, slot.buffer)

        def check() -> None:
            """Answer who only asks, and notice who leaves."""
            for reader in list(self._readers):
                if reader.wants is None and reader.line.poll() and not self._read(reader) and reader in members:
                    raise Lost("a reader left while weights were sent")

        self._notify(members, ("send", first))
        for bucket in self._buckets[first:]:
            data = slot.buffer[bucket.begin : bucket.end]
            data = data if group.backend == "nccl" else data.cpu()
            group.broadcast(data, check, timeout_s=self._timeout_s)

    def _group_of(self, members: list[_Reader], buffer: Tensor) -> Communicator:
        if self._group is not None and self._group[0] == members:
            return self._group[1]
        self._leave_group()
        gpus = [own_gpu() if buffer.is_cuda else "", *(reader.gpu for reader in members)]
        distinct = len(set(gpus)) == len(gpus) and not {"", CPU} & {*gpus}  # NCCL can't have one GPU twice
        backend = self._backend if self._backend != "auto" else "nccl" if distinct else "gloo"
        if buffer.is_cuda and backend == "gloo" and self._backend == "auto":
            log.warning(
                "weights pass through the host's memory: two processes share a GPU; weights.store=cuda_ipc fits"
            )
        store, port = open_store(self._address)
        for rank, reader in enumerate(members, start=1):
            reader.line.send(("join", backend, self._address, port, rank, len(members) + 1))
        size = len(members) + 1
        group = Communicator(backend, store, 0, size, address=self._address, timeout_s=self._timeout_s)
        self._group = (members, group)
        return group

    def _leave_group(self) -> None:
        if self._group is not None:
            group, self._group = self._group[1], None
            group.abort()

    def _notify(self, members: list[_Reader], message: tuple[object, ...]) -> None:
        for reader in members:
            try:
                reader.line.send(message)
            except OSError:
                self._drop(reader)
