"""A trainer that comes back: its last checkpoint, then the batches since from the journal, then the call that it broke.

What it holds afterwards is, on one device, what it held before, bit for bit. Generators go on meanwhile: nothing
here waits for them, and the loop's slots bound how far ahead they get.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from agentgym.actors.endpoint import Endpoint
from agentgym.actors.runtime import Runtime
from agentgym.rl.columns import SampleColumns
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.journal import Batch, Journal
from agentgym.trainer.mismatch_watch import MismatchWatch
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample
from agentgym.weights.store import WeightStore

log = logging.getLogger(__name__)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class TrainerKeeper(TrainerClient):
    """Every step goes through `train_step`, every publication through `push_weights`. Calls come one at a time.

    step: optimizer steps done, whatever became of the processes that did them. rate: optimizer.lr of the next one.
    """

    def __init__(
        self,
        setup: TrainerSetup,
        *,
        journal: Journal,
        store: WeightStore | None = None,
        runtime: Runtime | None = None,
        holds_weights: bool = False,
    ) -> None:
        """journal: of this run; what an earlier process left counts from `resume` on.

        holds_weights: the published weights are in the trainer's own memory and are lost with it.
        """
        super().__init__(setup, store=store, runtime=runtime, max_restarts=setup.trainer.max_restarts)
        self.journal = journal
        self.step = 0
        self.rate = setup.optimizer.lr
        self._holds_weights = holds_weights
        self._watch = MismatchWatch(setup.trainer.mismatch)
        self._checkpoint: tuple[int, Path] | None = None
        self._version: int | None = None  # that was published last
        self._published_at = 0  # the step after which it was
        self._moved = False  # by steps since

    async def resume(self, step: int, checkpoint: Path, *, until: int) -> None:
        """Continue from the checkpoint of a step, and train the journal's steps after it, to `until`."""
        self._checkpoint, self.step = (step, checkpoint), until
        self._moved = self._version is None
        await self._insist(self._restore, again=self._nothing)

    async def train_step(self, samples: Sequence[Sample]) -> dict[str, float]:
        samples = await asyncio.to_thread(SampleColumns.of, samples)
        batch = Batch(
            step=self.step + 1, version=self._version or 0, moved=self._moved, rate=self.rate, samples=samples
        )
        written = asyncio.ensure_future(asyncio.to_thread(self.journal.write, batch))
        try:
            metrics = await super().train_step(samples)
        finally:
            await asyncio.wait([written])  # else a batch of a step that is never trained could come later
        await written
        self.step += 1
        self._in_a_row, self._moved = 0, True
        for line in self._watch.look(metrics):
            log.warning("step %d: %s", self.step, line)
        return metrics

    async def push_weights(self, version: int) -> None:
        """Raises ValueError when the store holds the version, unless it is from the processes that were just lost."""
        await self._insist(
            lambda: self._ask(TrainerActor.push_weights, version), again=lambda: self._push_if_missing(version)
        )
        self._version, self._published_at, self._moved = version, self.step, False

    async def set_rate(self, rate: float) -> None:
        """Train the steps from now on with another optimizer.lr."""
        self.rate = rate
        await self._insist(lambda: self._ask(TrainerActor.set_rate, rate), again=self._nothing)

    async def call_unrecorded(self, method: Endpoint[TrainerActor, *Ts, R], *args: *Ts) -> R:
        """A call that changes the trainer beside the journal: a loss can't be made good from then on, and is raised."""
        self._max_restarts = 0
        return (await self._ask(method, *args))[0]

    def saved(self, step: int, checkpoint: Path) -> None:
        """There is a whole checkpoint of this step: what the journal has of it and before is dropped."""
        self._checkpoint = (step, checkpoint)
        self.journal.drop(step)

    async def _restore(self) -> None:
        first, rate = 0, self._setup.optimizer.lr
        if self._checkpoint is not None:
            first, folder = self._checkpoint
            await self._ask(TrainerActor.load, str(folder))
        for step in range(first, self.step + 1):
            if step > first:
                batch = await asyncio.to_thread(self.journal.read, step)
                await self._hold(batch.version, moved=batch.moved)
                rate = await self._change_rate(rate, self.rate if batch.rate is None else batch.rate)
                await self._ask(TrainerActor.train_step, batch.samples)
            if self._holds_weights and self._version is not None and step == self._published_at:
                await self._store_again(self._version)
        await self._change_rate(rate, self.rate)
        if self._version is not None:
            await self._hold(self._version, moved=self._moved)

    async def _change_rate(self, before: float, rate: float) -> float:
        if rate != before:
            await self._ask(TrainerActor.set_rate, rate)
        return rate

    async def _hold(self, version: int, *, moved: bool) -> None:
        await self._ask(TrainerActor.hold_moved if moved else TrainerActor.hold_version, version)

    async def _nothing(self) -> None:
        """`_restart` has restored it already."""

    async def _push_if_missing(self, version: int) -> list[None]:
        """A version is stored whole or not at all, so one that is there needs only to be known."""
        assert self._store is not None
        there = version in await self._store.versions()
        if there and self._holds_weights:
            await self._store.delete(version)
            there = False
        return await self._ask(TrainerActor.hold_version if there else TrainerActor.push_weights, version)

    async def _store_again(self, version: int) -> None:
        assert self._store is not None
        for lost in await self._store.versions():
            await self._store.delete(lost)
        await self._ask(TrainerActor.push_weights, version)

    def _goes_on_at(self) -> str:
        first = self._checkpoint[0] if self._checkpoint else 0
        again = f", {self.step - first} step(s) of it trained again" if self.step > first else ""
        return f": it goes on after step {self.step}{again}"
