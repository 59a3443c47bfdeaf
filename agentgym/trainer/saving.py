"""Writes a checkpoint in three parts: planned by all ranks together, written by each alone, finished together.

The middle part has no collective, so it may run in a thread while the ranks make other steps; then it writes copies.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from agentgym.errors import InfraError
from agentgym.runs.files import publish
from agentgym.trainer.build import TrainedModel
from agentgym.trainer.checkpoint import Fingerprints, fingerprints
from agentgym.trainer.host_memory import HostMemory
from agentgym.trainer.parallel import Ranks
from agentgym.trainer.state import state_of

COPIED_AHEAD = 10_000_000  # bytes; torch's default


class _Planner(DefaultSavePlanner):
    """Gives what is written as it is then, or as it was when `hold` was called."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[object, Tensor | BytesIO] = {}

    def hold(self, plan: SavePlan, memory: HostMemory) -> None:
        for item in plan.items:
            value = self.resolve_data(item)
            self._held[item.index] = memory.copy(value) if isinstance(value, Tensor) else value
        self.state_dict = {}

    def resolve_data(self, write_item: WriteItem) -> Tensor | BytesIO:
        held = self._held.get(write_item.index)
        return super().resolve_data(write_item) if held is None else held


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a rank has written. files: see `fingerprints`. error: why it could not; empty when it could."""

    results: list[WriteResult] = field(default_factory=list)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    write_s: float = 0.0
    error: str = ""


class CheckpointSave:
    """One checkpoint on its way to FOLDER.partial, renamed at the end. The folder must be shared by all ranks."""

    def __init__(
        self,
        folder: str,
        state: Mapping[str, Any],
        ranks: Ranks,
        *,
        describe: Callable[[Path, Fingerprints], None],
        small: Sequence[Callable[[Path], None]],
        memory: HostMemory | None,
    ) -> None:
        """Plan it. Collective. small: rank 0 has them write files of their own into the folder, now.

        describe: writes the manifest, given what is known of the files. memory: where what is written is copied to;
        without it the state must not change before `finish`.
        """
        self._target = Path(folder)
        self._partial = self._target.with_name(self._target.name + ".partial")
        self._ranks, self._describe = ranks, describe
        self._part = _Part()
        self._error: BaseException | None = AssertionError("nothing was written")
        if ranks.rank == 0:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir(parents=True)
            for write in small:
                write(self._partial)
        ranks.barrier()
        self._planner = _Planner()
        ahead = COPIED_AHEAD if memory is None else 0  # of a GPU's tensors; copies need no stream
        self._writer = FileSystemWriter(self._partial, per_thread_copy_ahead=ahead)
        self._plan, self._metadata = self._planned(state)
        if memory is not None:
            self._planner.hold(self._plan, memory)

    def write(self, also: Callable[[], None] = lambda: None) -> None:
        """This rank's part, until it is on the disk, then `also`. Not collective; `finish` raises what it raised."""
        begin_s = time.perf_counter()
        self._error = None
        try:
            results = self._writer.write_data(self._planner.finish_plan(self._plan), self._planner).wait()
            files = fingerprints(self._partial.glob(f"__{self._ranks.rank}_*"))
            also()
            self._part = _Part(results=results, files=files, write_s=time.perf_counter() - begin_s)
        except BaseException as error:
            self._error = error

    def finish(self, then: Callable[[], None] = lambda: None) -> float:
        """Give the folder its name once all parts are there; returns the seconds of the slowest part. Collective.

        then: what rank 0 does last. Raises what this rank's `write` raised, and InfraError on all other ranks.
        """
        parts = self._agreed(self._part, self._error)
        error = None
        if self._ranks.rank == 0:
            try:
                self._writer.finish(self._metadata, [part.results for part in parts])
                self._describe(self._partial, {name: known for part in parts for name, known in part.files.items()})
                publish(self._partial, self._target)
                then()
            except Exception as raised:
                error = raised
        self._agreed(_Part(), error)
        return max(part.write_s for part in parts)

    def _agreed(self, part: _Part, error: BaseException | None) -> list[_Part]:
        """Gathers the results of all ranks. Raises on each of them if one has failed."""
        parts = self._ranks.gathered(part if error is None else _Part(error=repr(error)))
        if error is not None:
            raise error
        for rank, other in enumerate(parts):
            if other.error:
                raise InfraError(f"rank {rank} could not write its part of {self._target}: {other.error}")
        return parts

    def _planned(self, state: Mapping[str, Any]) -> tuple[SavePlan, Metadata]:
        """This rank's share of the plan that all make from the plans of all."""
        planner, writer, first = self._planner, self._writer, self._ranks.rank == 0
        planner.set_up_planner(dict(state), storage_meta=writer.storage_meta(), is_coordinator=first)
        writer.set_up_storage_writer(first)
        plans = self._ranks.gathered(writer.prepare_local_plan(planner.create_local_plan()))
        plans, metadata = planner.create_global_plan(plans)
        plan = writer.prepare_global_plan(plans)[self._ranks.rank]
        return replace(plan, items=sorted(plan.items, key=_size)), metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a save writes beside its own folder. write: in the thread; finish: once that folder is whole."""

    write: Callable[[], None] = lambda: None
    finish: Callable[[], None] = lambda: None


class Saver:
    """The checkpoints of a trainer's process. One at a time is written by a thread, which makes no collective and dies
    with the process.
    """

    def __init__(
        self, built: TrainedModel, ranks: Ranks, small: Callable[[Path], None], describe: Callable[..., None]
    ) -> None:
        """small: writes a file of its own into each checkpoint. describe: `write_manifest`, which gets the step."""
        self._built, self._ranks, self._small, self._describe = built, ranks, small, describe
        self._memory = HostMemory(ranks.device)
        self._save: CheckpointSave | None = None
        self._export = Export()
        self._thread: threading.Thread | None = None

    def save(self, folder: str, step: int) -> None:
        """Returns when it is whole. Collective."""
        save = self._planned(folder, step, None)
        save.write()
        save.finish()

    def begin(self, folder: str, step: int, export: Callable[[HostMemory], Export]) -> None:
        """Copy the checkpoint; a thread writes it. Then `finish` is to be called. Collective.

        export: copies what else is to be written.
        """
        self._memory.release()
        save = self._planned(folder, step, self._memory)
        self._export = export(self._memory)
        self._memory.wait()
        self._save = save
        self._thread = threading.Thread(target=save.write, args=(self._export.write,), name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_written(self) -> bool:
        """Whether `finish` would not wait. Not collective, and from any thread."""
        return self._thread is None or not self._thread.is_alive()

    def finish(self) -> dict[str, float]:
        """Wait for what was begun, and give it its name; metrics, none where nothing was begun. Collective.

        Raises what `save` would have raised.
        """
        if self._save is None or self._thread is None:
            return {}
        self._thread.join()
        save, self._save, self._thread = self._save, None, None
        export, self._export = self._export, Export()
        try:
            return {"checkpoint/write_s": save.finish(export.finish)}
        finally:
            self._memory.release()

    def _planned(self, folder: str, step: int, memory: HostMemory | None) -> CheckpointSave:
        if self._save is not None:
            raise ValueError(f"another checkpoint is being written: finish it before {folder} is saved")
        return CheckpointSave(
            folder,
            state_of(self._built, step),
            self._ranks,
            describe=partial(self._describe, step=step),
            small=(self._built.rate.schedule.save, self._small),
            memory=memory,
        )


def _size(item: WriteItem) -> int:
    """The whole tensor's size in bytes: the order in which torch's writer loads tensors from a GPU."""
    if item.tensor_data is None:
        return 0
    return math.prod(item.tensor_data.size) * item.tensor_data.properties.dtype.itemsize
