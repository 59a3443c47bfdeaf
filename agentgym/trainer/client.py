"""The trainer as the controller sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple, cast

from agentgym.actors.endpoint import Endpoint
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import NoAnswer, ProcessDied, ProcessGroup
from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.errors import InfraError
from agentgym.rl.columns import SampleColumns
from agentgym.trainer.actor import TrainerActor, TrainerBroken
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample
from agentgym.weights.store import WeightStore

log = logging.getLogger(__name__)

LOST = (ProcessDied, NoAnswer, TrainerBroken)
"""What ends a call whose processes can't go on: one died, did not answer in time, or lost a peer or its device."""
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class TrainerClient:
    """Starts the trainer's processes and calls them, each time with the deadline trainer.step_timeout_s.

    When one dies, hangs or is cut off, all of them are replaced and the call is made again, `max_restarts` times in a
    row; then, or with 0, the call ends with an InfraError that names the process. New processes hold the weights of
    the setup's model: `TrainerKeeper` gives them back what they had learned.
    """

    def __init__(
        self,
        setup: TrainerSetup,
        *,
        store: WeightStore | None = None,
        runtime: Runtime | None = None,
        name: str = "trainer",
        max_restarts: int = 0,
    ) -> None:
        """store: where `push_weights` puts the weights; None for a trainer that never does."""
        self._setup = setup
        self._timeout_s = setup.trainer.step_timeout_s
        self._store = store
        self._runtime = runtime or current_runtime()
        self._name = name
        self._max_restarts = max_restarts
        self._in_a_row = 0
        self._group: ProcessGroup[TrainerActor] | None = None
        self._prepared = False
        self._one_call = asyncio.Lock()
        self._back = asyncio.Event()  # another one for each time that it comes back
        self._reviving: asyncio.Task[object] | None = None
        self.restarts = 0
        """Of all its processes, since it was made."""
        self.down_s = 0.0
        """From each loss that was noticed to the return, in all."""

    async def prepare(self) -> None:
        """Start the processes and load what they compute with, beside others that still take their GPU's memory.

        `start` goes on with them, or replaces those that were lost.
        """
        self._group = self._new_group()
        try:
            await self._group.start(timeout_s=self._timeout_s)
            await self._ask(TrainerActor.prepare)
            self._prepared = True
        except LOST as error:
            log.warning("the %s was lost before it started: %s", self._name, error)

    async def start(self) -> None:
        """Start the processes and build the engine. Raises UserError for a model that can't be trained.

        A start that hangs is made once more, and not as often as others: it may be one that takes too long.
        """
        try:
            await self._launch()
        except ProcessDied as error:
            await self._restart(error)
        except NoAnswer as error:
            limit = f"a first start that hangs is made twice; raise trainer.step_timeout_s ({self._timeout_s:g} s) "
            await self._restart(error, most=1, limit=f"{limit}if it takes longer")

    async def call(self, method: Endpoint[TrainerActor, *Ts, R], *args: *Ts) -> R:
        """Call an endpoint on every process; the answer of rank 0, whose metrics are of the whole batch."""
        return (await self.call_all(method, *args))[0]

    async def call_all(self, method: Endpoint[TrainerActor, *Ts, R], *args: *Ts) -> list[R]:
        """Call an endpoint on every process; answers by rank."""
        return await self._insist(lambda: self._ask(method, *args))

    async def train_step(self, samples: Sequence[Sample]) -> dict[str, float]:
        """One optimizer step; returns the metrics."""
        return await self.call(TrainerActor.train_step, await asyncio.to_thread(SampleColumns.of, samples))

    async def push_weights(self, version: int) -> None:
        """Store the weights under a version."""
        await self.call(TrainerActor.push_weights, version)

    async def revive(self) -> None:
        """Return once its processes answer and hold what those before them had; where they are lost, replace them.

        It may be called beside a call, which notices a loss itself. Raises what a call would raise.
        """
        if self._reviving is None or self._reviving.done():
            self._reviving = asyncio.create_task(self.call(TrainerActor.get_status), name=f"{self._name} comes back")
        reviving, back = self._reviving, asyncio.ensure_future(self._back.wait())
        try:
            await asyncio.wait({reviving, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            back.cancel()
        if reviving.cancelled():
            raise InfraError(f"the {self._name} is closed")
        if reviving.done():
            reviving.result()

    def metrics(self) -> dict[str, float]:
        return {f"{self._name}/restarts_total": float(self.restarts), f"{self._name}/down_s_total": self.down_s}

    def pids(self) -> list[int]:
        return list(self._started().pids)

    async def close(self) -> None:
        """Safe to call twice."""
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.gather(self._reviving, return_exceptions=True)
        await self._stop()

    async def _stop(self) -> None:
        if self._group is not None:
            group, self._group = self._group, None
            await group.stop()

    async def _restore(self) -> None:
        """Give processes that were just started what those before them had."""

    async def _insist(self, ask: Callable[[], Awaitable[R]], again: Callable[[], Awaitable[R]] | None = None) -> R:
        """The answer, from other processes if need be. again: what is asked of those; the same otherwise."""
        async with self._one_call:
            while True:
                try:
                    return await ask()
                except LOST as error:
                    await self._restart(error)
                    ask = again or ask

    async def _ask(self, method: Endpoint[TrainerActor, *Ts, R], *args: *Ts) -> list[R]:
        """Where samples come first among the arguments, each of several processes gets whole only what it reads."""
        group, given = self._started(), cast("tuple[Any, ...]", args)
        samples = await asyncio.to_thread(_samples_of, given) if self._setup.trainer.procs > 1 else None
        if samples is None:
            return await group.call(method, *args, timeout_s=self._timeout_s)
        lengths, of_step = array("q", samples.lengths.tolist()), cast(object, method) is TrainerActor.train_step
        own = await group.call(TrainerActor.own_samples, lengths, of_step, timeout_s=self._timeout_s)
        arguments: list[Any] = [(samples.share(indices), *given[1:]) for indices in own]
        return await group.call_each(method, arguments, timeout_s=self._timeout_s)

    async def _restart(self, error: Exception, *, most: int | None = None, limit: str = "") -> None:
        """Replace the processes, again if the new ones are lost. Raises the error when that is not allowed any more.

        most: restarts in a row, where that is fewer than trainer.max_restarts. limit: what says so.
        """
        most = self._max_restarts if most is None else min(most, self._max_restarts)
        limit = limit or f"trainer.max_restarts is {most}"
        began_s = time.monotonic()
        while True:
            if self._in_a_row >= most:
                raise self._lost(error, limit) from error
            self._in_a_row += 1
            self.restarts += 1
            allowed = f"restart {self._in_a_row} of at most {most} without a new step"
            log.warning("the %s is lost and starts again (%s): %s", self._name, allowed, error)
            try:
                await self._launch()
                await self._restore()
                break
            except LOST as another:
                error = another
        passed_s = time.monotonic() - began_s
        self.down_s += passed_s
        self._back.set()
        self._back = asyncio.Event()
        log.warning("the %s is back after %.1f s%s", self._name, passed_s, self._goes_on_at())

    def _goes_on_at(self) -> str:
        """Where it goes on, for the line that reports it."""
        return ""

    def _lost(self, error: Exception, limit: str) -> Exception:
        if not self._max_restarts:
            return error
        return InfraError(
            f"the {self._name} was lost {self._in_a_row + 1} times without a new step in between, and is not started "
            f"again ({limit}). The last time: {error}"
        )

    async def _launch(self) -> None:
        prepared, self._prepared = self._prepared, False
        if self._group is not None and not prepared:
            self._group.give_up("it is replaced")  # a process that hangs is not asked to end, it is killed
            await self._stop()
        self._group = group = self._group or self._new_group()
        try:
            if not prepared:
                await group.start(timeout_s=self._timeout_s)
            await self._ask(TrainerActor.setup)
            if self._setup.warm_up:  # a call of its own, with a deadline of its own
                await self._ask(TrainerActor.warm_up)
        except BaseException as error:
            if isinstance(error, NoAnswer | asyncio.CancelledError):  # it computes, for minutes if it compiles
                group.give_up(str(error))
            await self._stop()
            raise

    def _new_group(self) -> ProcessGroup[TrainerActor]:
        part = "trainer" if self._name == "trainer" else "reference"  # a teacher, too, is beside the trainer
        options = trainer_options(self._setup.trainer, self._store, part)
        return TrainerActor.launch(self._name, self._setup, self._store, options=options, runtime=self._runtime)

    def _started(self) -> ProcessGroup[TrainerActor]:
        if self._group is None:
            raise InfraError(f"the {self._name} is not running; await start() first")
        return self._group


def _samples_of(args: tuple[Any, ...]) -> SampleColumns | None:
    """The first argument, where it is samples that can be sent as columns."""
    if args and isinstance(args[0], Sequence) and len(args[0]) and isinstance(args[0][0], Sample):
        samples = SampleColumns.of(args[0])
        return samples if isinstance(samples, SampleColumns) else None
    return None


def trainer_options(config: TrainerConfig, store: WeightStore | None, hosts: str = "trainer") -> ActorOptions:
    """Where the trainer's processes run. hosts: trainer or reference."""
    return ActorOptions(
        procs=config.procs,
        hosts=hosts,
        with_gpus=config.device != "cpu",
        gpus=config.gpus,
        share_gpus=True,
        threads=config.threads,
        torchrun=True,
        imports=() if store is None else store.process_imports,
    )
