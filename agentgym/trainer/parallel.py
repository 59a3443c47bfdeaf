"""The trainer's process group, its meshes, and each rank's part of the work."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from agentgym.errors import UserError
from agentgym.models.device import pick_device
from agentgym.models.gpu_segments import let_segments_grow
from agentgym.trainer import titan
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.context import Context

T = TypeVar("T")
_changing_filters = threading.Lock()
_filters: list[warnings.catch_warnings[None]] = []
_inside: list[None] = []  # one for each thread in `expected_warnings_off`


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process's device and place. dims: torchtitan's meshes. owns_group: this process created it."""

    device: torch.device
    dims: Any
    parallelism: Any
    rank: int
    sharded: bool
    owns_group: bool

    @property
    def data_rank(self) -> int:
        return 0 if self._batch_mesh is None else self._batch_mesh.get_local_rank()

    @property
    def data_size(self) -> int:
        return 1 if self._batch_mesh is None else self._batch_mesh.size()

    @property
    def context(self) -> Context:
        """Its part of each row."""
        mesh = self.dims.get_optional_mesh("cp") if self.sharded else None
        return Context(None if mesh is None else mesh.get_group())

    @property
    def _batch_mesh(self) -> Any:
        return self.dims.get_optional_mesh("batch") if self.sharded else None

    def reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Combine over the ranks that hold different data, in place."""
        if self._batch_mesh is not None:
            dist.all_reduce(values, operation, self._batch_mesh.get_group())
        return values

    def same(self, values: Tensor) -> Tensor:
        """Copies rank 0's values to every rank, in place, so that all ranks decide alike despite rounding."""
        if self.sharded:
            dist.broadcast(values, 0)
        return values

    def gathered(self, value: T) -> list[T]:
        """Gathers the values of every rank on every rank, in rank order. It must be picklable."""
        if not self.sharded:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def memory_peak(self) -> dict[str, float]:
        """GiB of the GPU at most since `forget_peak`, on the rank that took most; nothing on a CPU."""
        if self.device.type != "cuda":
            return {}
        peak = torch.tensor(torch.cuda.max_memory_allocated(self.device) / 2**30, device=self.device)
        return {"train/gpu_peak_gib": float(self.reduce(peak, dist.ReduceOp.MAX))}

    def barrier(self) -> None:
        if self.sharded:
            dist.barrier()

    def leave(self) -> None:
        if self.owns_group and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def expected_warnings_off() -> Iterator[None]:
    """Silence torch's warnings about what is intended: saving and loading in a single process, drawing random
    weights for a sharded model on a CPU, and how torchtitan restores a schedule.

    The filters are the process's: of threads that are in here together, the last one puts the earlier ones back.
    """
    with _changing_filters:
        if not _inside:
            _filters.append(warnings.catch_warnings())
            _filters[0].__enter__()
            for message in ("torch.distributed is disabled", "DTensor random operators", "To get the last learning"):
                warnings.filterwarnings("ignore", message=message, category=UserWarning)
        _inside.append(None)
    try:
        yield
    finally:
        with _changing_filters:
            _inside.pop()
            if not _inside:
                _filters.pop().__exit__(None, None, None)


def join(config: TrainerConfig) -> Ranks:
    """Join the process group, with torchrun's variables set when trainer.procs is above 1.

    One process in float32 needs no group and no sharding: FSDP would only copy. In bfloat16 it is FSDP that
    casts, so one process shards with itself.
    """
    device_type = pick_device(config.device, "trainer")
    titan.set_device(device_type)
    sharded = config.procs > 1 or config.dtype != "float32"
    owns_group = sharded and not dist.is_initialized()
    if owns_group:
        _start_group("gloo" if device_type == "cpu" else "nccl", config.procs)
    rank = dist.get_rank() if sharded else 0
    if sharded and dist.get_world_size() != config.procs:
        raise UserError(
            f"trainer.procs is {config.procs}, but the process group has {dist.get_world_size()} processes; "
            "start as many as trainer.procs"
        )
    device = torch.device("cpu")
    if device_type == "cuda":
        device = torch.device("cuda", config.gpus[rank] if config.gpus else rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        let_segments_grow()
    parallelism = titan.ParallelismConfig(
        tensor_parallel_degree=config.tensor_parallel,
        context_parallel_degree=config.context_parallel,
        expert_parallel_degree=config.expert_parallel,
        data_parallel_shard_degree=config.data_parallel_shard,
        spmd_backend="partial_dtensor",  # the default fails with more than one process on torch 2.13
    )
    titan.set_spmd_backend("partial_dtensor")
    dims = titan.ParallelDims.from_config(parallelism, config.procs)
    if sharded:
        dims.build_mesh()
    return Ranks(device=device, dims=dims, parallelism=parallelism, rank=rank, sharded=sharded, owns_group=owns_group)


def lost_in(error: BaseException) -> str:
    """What this process lost, a peer or its device, if that is what the error is about; else empty.

    gloo raises plain RuntimeErrors, and a checkpoint's error holds those of all ranks.
    """
    seen: BaseException | None = error
    while seen is not None:  # what was lost may break the clearing up too, whose error is then raised
        if isinstance(seen, (dist.DistError, torch.AcceleratorError)):
            return str(seen)
        seen = seen.__cause__ or seen.__context__
    lines = "".join(traceback.format_exception(error)).splitlines()
    return next((line.strip() for line in lines if "gloo/transport" in line), "")


def _start_group(backend: str, procs: int) -> None:
    if procs == 1:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        return
    try:
        dist.init_process_group(backend)
    except ValueError as error:
        raise UserError(
            f"trainer.procs is {procs}, so RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT must be set, "
            f"as torchrun does: {error}"
        ) from error
