"""Weights are opened, and received where they are sent, while vLLM still generates: requests wait for copies alone."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from agentgym.weights.reading import open_weights
from agentgym.weights.store import SENT_SUFFIX, StoredWeights

SPARE_BYTES = 2**30  # of a GPU, which stay free beside the weights that are received


class Staging:
    """A version that a thread of this process opens."""

    def __init__(self, path: Path, device: torch.device, *, receive: bool) -> None:
        """receive: also what is sent, which takes the weights' size on the device until they are loaded."""
        self.path = path
        self.failure = ""
        self._device, self._receive = device, receive
        self._weights: list[tuple[str, Tensor]] | None = None
        self._thread = threading.Thread(target=self._open, name="weights-staging", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Those that are there; what is not yet received is received by who goes through them."""
        return open_weights(self.path) if self._weights is None else self._weights

    def _open(self) -> None:
        try:
            stored = open_weights(self.path)
            with ExitStack() as stack:
                if self._device.type == "cuda":
                    torch.cuda.set_device(self._device)  # of this thread
                    stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
                    stack.enter_context(torch.cuda.stream(stream))
                if self.path.suffix != SENT_SUFFIX or (self._receive and has_room(stored, self._device)):
                    self._weights = list(stored)
        except torch.OutOfMemoryError:
            self._weights = None
        except Exception as error:  # for the engine, which asks from another process
            self.failure = f"{type(error).__name__}: {error}"


def has_room(stored: StoredWeights, device: torch.device) -> bool:
    """Whether all of the weights fit beside what the device holds."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return sum(tensor.nbytes for _, tensor in stored.entries()) + SPARE_BYTES <= free
