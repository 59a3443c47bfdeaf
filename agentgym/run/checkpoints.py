"""A run's checkpoints: saved while training stands still, or copied quickly and written while the next steps go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial

from agentgym.loops.async_rl import Position
from agentgym.rollout.activity import Activity
from agentgym.run.in_flight import InFlight
from agentgym.run.resume import RunState
from agentgym.runs.checkpoints import discard, prune, save_position
from agentgym.runs.folder import RunFolder
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.reference import BaseOfTrainer, ReferenceModel


@dataclass(slots=True, kw_only=True)
class CheckpointWriter:
    """Writes the trainer's checkpoints: one at a time, which counts once it is whole on the disk.

    Calls come between two steps, one at a time. note: gets a line where one was lost.
    """

    folder: RunFolder
    trainer: TrainerKeeper
    activity: Activity
    note: Callable[[str], None]
    reference: ReferenceModel | BaseOfTrainer | None = None
    _under_way: tuple[int, Callable[[], None]] | None = None
    _metrics: dict[str, float] = field(default_factory=dict)

    async def write(self, step: int) -> None:
        """Returns when it is on the disk. None may be under way."""
        target = self.folder.checkpoint_dir(step)
        with self.activity.doing("save"):
            await self.trainer.call(TrainerActor.save, str(target / "trainer"))
            await self.trainer.call(TrainerActor.export_hf, str(target / "hf"))
            await self._save_reference(step)

    async def begin_write(self, step: int, count: Callable[[], None]) -> None:
        """Returns when all of it is copied. None may be under way. count: what `settle` or `finish` calls once it is on
        the disk.
        """
        target = self.folder.checkpoint_dir(step)
        with self.activity.doing("save"):
            await self.trainer.call(TrainerActor.begin_save, str(target / "trainer"), str(target / "hf"))
            await self._save_reference(step)
        self._under_way = step, count

    async def wait(self) -> None:
        """Waits as `finish` does, because the next one is due; a metric has the duration."""
        if self._under_way is not None:
            begin_s = time.monotonic()
            await self.finish()
            self._metrics["checkpoint/wait_s"] = time.monotonic() - begin_s

    async def settle(self) -> None:
        """Have the one that is under way count if it is written. Raises what its writing raised."""
        if self._under_way is not None and all(await self.trainer.call_all(TrainerActor.save_is_written)):
            await self.finish()

    async def finish(self) -> None:
        """Wait until the one that is under way counts, if there is one. Raises what its writing raised."""
        if self._under_way is None:
            return
        step, count = self._under_way
        with self.activity.doing("save"):
            metrics = await self.trainer.call(TrainerActor.finish_save)
        self._under_way = None
        if metrics:
            self._metrics |= metrics
            count()
        else:
            discard(self.folder, step)
            text = f"the checkpoint of step {step} was lost with the trainer that wrote it"
            self.folder.event(text)
            self.note(text)

    def metrics(self) -> dict[str, float]:
        """The metrics of what ended since the last call.

        checkpoint/write_s: how long steps went on beside the writing of one. checkpoint/wait_s: how long training
        stood still because the next one was due.
        """
        found, self._metrics = self._metrics, {}
        return found

    async def _save_reference(self, step: int) -> None:
        if isinstance(self.reference, ReferenceModel) and self.reference.moves:
            await self.reference.call(TrainerActor.export_hf, str(self.folder.checkpoint_dir(step) / "reference"))


@dataclass(slots=True, kw_only=True)
class Checkpoints(CheckpointWriter):
    """The checkpoints of a run with a position. When one counts it gets its position, the state names it, the journal
    drops its steps and older ones are removed.

    in_flight: None where nothing is sampled. keep: see loop.keep_checkpoints; 0 is all.
    """

    state: RunState
    keep: int
    in_flight: InFlight | None = None

    @property
    def none_yet(self) -> bool:
        """Whether there is no checkpoint, and none is being written."""
        return self.state.position is None and self._under_way is None

    async def save(self, position: Position) -> None:
        """Returns when the checkpoint counts. One of this step is not written again."""
        await self.finish()
        if not self._has(position):
            await self.write(position.step)
        await self._save_in_flight(position)
        self._count(position)

    async def begin(self, position: Position) -> None:
        """Returns when all of the checkpoint is copied; `settle` and `finish` make it count. Waits for the former."""
        position = deepcopy(position)  # what a task stream gave may go on changing
        await self.wait()
        if self._has(position):
            return await self.save(position)
        await self.begin_write(position.step, partial(self._count, position))
        await self._save_in_flight(position)

    def _has(self, position: Position) -> bool:
        return self.state.position is not None and self.state.position.step == position.step

    async def _save_in_flight(self, position: Position) -> None:
        if self.in_flight is not None:
            await self.in_flight.save(position, self.trainer)

    def _count(self, position: Position) -> None:
        self.state.position = position
        save_position(self.folder, position.step, asdict(position))
        self.folder.save_state(self.state.to_mapping())
        self.trainer.saved(position.step, self.folder.checkpoint_dir(position.step) / "trainer")
        prune(self.folder, self.keep)
