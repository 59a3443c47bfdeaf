"""A communicator of one sender and its receivers, apart from the process groups that either has: NCCL or gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from agentgym.models.device import gpu_identity

POLL_S = 0.0005
FOREVER = timedelta(days=1)  # the waiting is ours: torch's own timeout ends the process


class Communicator:
    """Rank 0 sends. Every member makes its own at the same time; after any error it is of no use."""

    def __init__(self, backend: str, store: Store, rank: int, size: int, *, address: str, timeout_s: float) -> None:
        """store: where the members meet. address: this process's own, for gloo. timeout_s: for all to come."""
        store.set_timeout(timedelta(seconds=timeout_s))
        self.backend = backend
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = FOREVER
            self._group: dist.ProcessGroup = dist.ProcessGroupNCCL(store, rank, size, options)  # type: ignore[assignment]
        else:
            gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
            gloo._timeout = timedelta(seconds=timeout_s)
            self._group = dist.ProcessGroupGloo(store, rank, size, gloo)  # type: ignore[assignment]
        self._store = store  # as long as the group

    def broadcast(self, data: Tensor, check: Callable[[], None], *, timeout_s: float) -> None:
        """Rank 0's bytes to all, in place. check: raises when the others left. Raises TimeoutError, RuntimeError."""
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        work = self._group.broadcast([data], options)
        until_s = time.monotonic() + timeout_s
        while not work.is_completed():
            check()
            if time.monotonic() > until_s:
                raise TimeoutError(f"{data.numel()} bytes were not through after {timeout_s:g} s")
            time.sleep(POLL_S)
        work.wait()
        if data.is_cuda:
            torch.cuda.current_stream(data.device).synchronize()

    def abort(self) -> None:
        """Give up what is under way, also where a member is dead."""
        self._group.abort()


def open_store(address: str) -> tuple[TCPStore, int]:
    """A store on this host and its port. The process that made it must outlast the communicator's first message."""
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    return store, store.port


def join(address: str, port: int, *, timeout_s: float) -> TCPStore:
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=timeout_s))


def own_gpu() -> str:
    """The current GPU of this thread, by a name that all processes share; empty without one."""
    if not torch.cuda.is_available():
        return ""
    return gpu_identity(torch.cuda.current_device())
