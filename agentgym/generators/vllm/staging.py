"""While vLLM generates, weights are opened, fetched from other GPUs, and merged where they are adapters.

So requests wait for copies alone, unless the GPU has no room for what is merged.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from agentgym.weights.adapters import Base, MergedWeights, Origin, has_adapters
from agentgym.weights.reading import open_weights
from agentgym.weights.store import GPU_SUFFIX, SENT_SUFFIX, StoredWeights

log = logging.getLogger(__name__)

SPARE_BYTES = 2**30  # of a GPU, which stay free beside the weights that are received
OTHERS_BYTES = 4 * 2**30  # of a GPU, beyond this process's tensors: more of it belongs to other processes
CPU = torch.device("cpu")

Weights = Iterable[tuple[str, Tensor]]


class Staging:
    """A version that a thread of this process opens."""

    def __init__(
        self,
        path: Path,
        device: torch.device,
        *,
        receive: bool,
        base: Base,
        held: Origin | None = None,
        ahead: bool = False,
    ) -> None:
        """receive: whether the thread may receive what is sent, which takes the weights' size on the device until they
        are loaded. Adapters, which are few, are received here where it may not. base: what they are merged into.
        held: the origin of the weights that the model has, if these are merged: of another version of the same origin
        only what is adapted is made beforehand. ahead: the version is not loaded: of adapters the base is read, for the
        versions that follow.
        """
        self.path = path
        self.failure = ""
        self._device, self._receive, self._base, self._held = device, receive, base, held
        self._ahead = ahead
        self._received: Weights | None = None
        self._weights: Weights | None = None
        if path.suffix == SENT_SUFFIX and not receive and not ahead:
            self._receive_adapters()
        self._thread = threading.Thread(target=self._open, name="weights-staging", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def weights(self) -> Weights:
        """The received weights; iterating receives the rest."""
        return self._base.whole(open_weights(self.path), self._device) if self._weights is None else self._weights

    def _receive_adapters(self) -> None:
        try:
            stored = open_weights(self.path)
            if has_adapters(stored.entries()):
                _finish(self._device)  # the ranks' own messages must not meet ours
                self._received = list(stored)
                _finish(self._device)
        except Exception as error:
            self.failure = _reason(error)

    def _open(self) -> None:
        if self.failure:
            return
        try:
            stored = open_weights(self.path)
            with _beside(self._device):
                if self._ahead:
                    if has_adapters(stored.entries()) and (self._receive or self.path.suffix != SENT_SUFFIX):
                        self._base.merged(stored, self._device, self._keeps)
                elif has_adapters(stored.entries()):
                    self._weights = self._merged(list(stored) if self._received is None else self._received)
                elif self.path.suffix != SENT_SUFFIX or (self._receive and has_room(stored, self._device)):
                    self._weights = list(stored)
                    if self.path.suffix == GPU_SUFFIX and has_own_room(stored, self._device):
                        # from the trainer's GPU to several replicas at once takes longer than a pause should
                        self._weights = [(name, tensor.to(self._device)) for name, tensor in self._weights]
        except torch.OutOfMemoryError:
            self._weights = None
        except Exception as error:
            self.failure = _reason(error)

    def _merged(self, adapters: Weights) -> MergedWeights:
        """Made where the device has room for them and is nobody else's; else each is made when it is loaded.

        They are never made for the host's memory: each rank of each replica would hold a model there.
        """
        try:
            merged = self._base.merged(adapters, self._device, self._keeps)
        except torch.OutOfMemoryError:
            return self._base.merged(adapters, CPU).on(self._device)
        part = merged.parts()[1] if merged.origin == self._held else merged
        if has_own_room(part, self._device):
            with suppress(torch.OutOfMemoryError):
                merged.make(name for name, _ in part.entries())
                return merged
        log.warning("adapters are merged while requests wait: %s", usage(self._device))
        return merged

    def _keeps(self, size: int) -> bool:
        """Whether the base stays on the device: beside it there must be room for as much that is merged."""
        return others_bytes(self._device) <= OTHERS_BYTES and free_bytes(self._device) >= 2 * size + SPARE_BYTES


def has_room(stored: StoredWeights | MergedWeights, device: torch.device) -> bool:
    """Whether all of the weights fit beside what the device holds."""
    if device.type != "cuda":
        return True
    return sum(tensor.nbytes for _, tensor in stored.entries()) + SPARE_BYTES <= free_bytes(device)


def free_bytes(device: torch.device) -> float:
    """What this process may still take of a GPU; all is free on a CPU."""
    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def has_own_room(stored: StoredWeights | MergedWeights, device: torch.device) -> bool:
    """Also that no other process uses the device: what this one keeps for its next update would be missing there."""
    return has_room(stored, device) and others_bytes(device) <= OTHERS_BYTES


def others_bytes(device: torch.device) -> int:
    """What is used of a GPU beyond this process's tensors."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)


def usage(device: torch.device) -> str:
    """What keeps merged weights from being made beforehand."""
    free, others = free_bytes(device) / 2**30, others_bytes(device) / 2**30
    return f"the GPU has {free:.1f} GiB for them, and {others:.1f} GiB are used beyond this process's tensors"


@contextmanager
def _beside(device: torch.device) -> Iterator[None]:
    """On a GPU, runs this thread's work beside the model's; all of it is done when this ends."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_device(device)  # of this thread
    stream = _stream(device)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all updates: memory that a stream has freed is kept for its own use."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _reason(error: Exception) -> str:
    """The reason as text, for the engine, which asks from another process."""
    return f"{type(error).__name__}: {error}"
