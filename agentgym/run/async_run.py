"""A run as the asynchronous loop drives it: what a step leaves in the folder, checkpoints, evaluations, requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, cast

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.generators.service import GeneratorService
from agentgym.loops.async_rl import Position, StepRecord
from agentgym.observed import OBSERVED
from agentgym.rl.advantages import assign_advantages
from agentgym.rl.config import LoopConfig
from agentgym.rl.ending import nothing_left
from agentgym.rl.trained import by_turn
from agentgym.rollout.group import InfraMonitor
from agentgym.rollout.playing import Elsewhere
from agentgym.rollout.tasks import TaskStream, open_stream
from agentgym.run.changes import Changes, recipe_at
from agentgym.run.checkpoints import Checkpoints
from agentgym.run.control import Control, StepLock
from agentgym.run.ending import TrainResult, checkpoint_name, compare_ends
from agentgym.run.evaluate import measure
from agentgym.run.forecast import PlayedForecast, is_probed, steps_forecast, token_s
from agentgym.run.in_flight import InFlight
from agentgym.run.metrics import StepClock, StepMeter
from agentgym.run.resume import RunState, undo_later_steps
from agentgym.run.session import Session
from agentgym.run.sync_check import check_sync
from agentgym.runs.changes import Change, read_changes
from agentgym.runs.checkpoints import drop_undone, drop_unfinished
from agentgym.runs.evaluations import held_out_metric, read_record
from agentgym.runs.folder import RunFolder
from agentgym.runs.starts import record_start
from agentgym.runs.steering import Steering
from agentgym.tables.changeable import changeable
from agentgym.trainer.actor import TrainerActor
from agentgym.types import Group, Json, Task

Held = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True, kw_only=True)
class AsyncRun:
    """Implements `agentgym.loops.async_rl.Run` over a session.

    learner: takes the lock for a step, which `release` gives back. position: where this process began. last: what a
    checkpoint would hold now, between two steps. config: the loop's as it is now.
    """

    session: Session
    config: LoopConfig
    learner: StepLock
    generator: GeneratorService
    position: Position
    tasks: TaskStream
    state: RunState
    in_flight: InFlight
    checkpoints: Checkpoints
    control: Control
    changes: Changes
    meter: StepMeter
    monitor: InfraMonitor
    last: Position
    forecast: PlayedForecast | None = None

    @classmethod
    async def begin(cls, session: Session, lock: asyncio.Lock | None = None, later: Sequence[Change] = ()) -> AsyncRun:
        """Take over what the folder holds, or save a checkpoint of step 0. lock: held from a step's begin to its end.

        later: changes of settings that are made again after their steps.
        Raises UserError for a folder with the checkpoints of another loop.
        """
        settled, folder, engines, start = session.settled, session.folder, session.engines, session.start
        loop, state, position = settled.recipe.loop, session.start.state, session.start.position
        if start.checkpoint is None and folder.checkpoint_steps():
            raise UserError(
                f"{folder.path} has checkpoints of another loop, saved by services.save: go on with that loop, or "
                "start a new run"
            )
        in_flight = InFlight(folder=folder, rollouts=engines.rollouts, pinned=loop.deterministic)
        checkpoints = Checkpoints(
            folder=folder,
            state=state,
            trainer=engines.trainer,
            reference=engines.reference,
            in_flight=in_flight,
            activity=session.gym.activity,
            keep=loop.keep_checkpoints,
            note=session.reporter.note,
        )
        machine = await engines.trainer.call(TrainerActor.get_machine)
        config = cast("dict[str, Json]", to_mapping(settled.recipe))
        record_start(folder, step=position.step, config=config, machine=machine)
        if state.position is not None:
            await in_flight.restore(state.position, position.next_group, engines.trainer)
        if start.replayed is not None:
            drop_undone(folder, start.replayed.step)
        drop_unfinished(folder)
        if state.position is None and loop.checkpoint_every and loop.checkpoint_in_background:
            await checkpoints.begin(position)
        elif state.position is None or start.replayed is not None:
            await checkpoints.save(position)
        else:
            undo_later_steps(folder, state)
        engines.trainer.journal.clear()
        # as the run began: what a sampler draws may depend on it
        slots = recipe_at(settled.recipe, read_changes(folder.path), -1).loop.num_slots
        return cls(
            session=session,
            config=loop,
            learner=StepLock(engines.learner, lock or asyncio.Lock()),
            generator=engines.generator,
            position=position,
            tasks=open_stream(
                settled.recipe.task_sampler,
                session.gym.environment,
                loop.seed,
                position.next_group,
                in_flight=slots,
                state=position.tasks,
            ),
            state=state,
            in_flight=in_flight,
            checkpoints=checkpoints,
            control=Control(folder, Steering(folder.path)),
            changes=Changes(folder=folder, recipe=settled.recipe, later=[*later]),
            meter=StepMeter(clock=StepClock(session.gym.activity)),
            monitor=InfraMonitor(settled.recipe.rollout.max_infra_error_share),
            last=position,
            forecast=None if position.step else PlayedForecast(recipe=settled.recipe, note=session.reporter.note),
        )

    @property
    def folder(self) -> RunFolder:
        return self.session.folder

    @property
    def measures_ends(self) -> bool:
        return self.session.settled.recipe.eval.at_end

    @property
    def measures_checkpoints(self) -> bool:
        return self.session.settled.recipe.eval.every_checkpoint

    @property
    def done(self) -> int:
        """Steps."""
        return self.last.step

    async def measure_first(self) -> None:
        measures = self.measures_ends or self.measures_checkpoints
        recipe, trainer = self.session.settled.recipe, self.session.engines.trainer
        if self.forecast is not None and is_probed(recipe):
            self.forecast.token_s = await token_s(
                lambda samples: trainer.call(TrainerActor.logprobs, samples, True), recipe.trainer.seq_len
            )
        if measures and self.state.first_eval is None and self.position == Position():
            began = time.monotonic()
            written = asyncio.create_task(self.checkpoints.finish(), name="the checkpoint of step 0")
            try:
                self.state.first_eval = await self._evaluate(0, forecast=self.forecast)
            finally:
                await written
            self.state.first_eval_s = time.monotonic() - began
            if self.forecast is not None:
                self.forecast.say()
            if self.state.position is not None:  # else the trainer was lost meanwhile: nothing goes on from this state
                self.folder.save_state(self.state.to_mapping())
        elif self.forecast is not None:
            self.forecast.begin(self.config.groups_per_step * self.config.group_size, evaluating=False)

    async def start_steps(self) -> None:
        self.control.begin(self.done)
        self.session.reporter.phase(f"training {self.config.steps - self.done} steps")
        self.meter.start(*await self._figures())
        rows = [row.metrics for row in self.folder.read_metrics()] if self.done else []
        if known := steps_forecast(rows, self.config.steps - self.done, self._end_s):
            self.session.reporter.note(str(known))

    @property
    def _end_s(self) -> float:
        """Seconds of the evaluation of the last weights, as the first took."""
        return self.state.first_eval_s if self.measures_ends else 0.0

    async def play(self, task: Task, group_id: int, version: int) -> Group:
        loop, engines = self.config, self.session.engines
        newest = self.generator.version
        group = await self.in_flight.play(
            task, group_id, version=version, newest=newest, size=loop.group_size, run_seed=loop.seed
        )
        for episode in group.episodes:
            self.monitor.add(episode)
            if self.forecast is not None and not self.done:
                self.forecast.add(episode)
        assign_advantages(group, self.session.settled.recipe.advantage)
        engines.learner.ended(group)
        return group

    async def end_step(self, record: StepRecord, position: Position) -> dict[str, float]:
        engines = self.session.engines
        await self.session.background.done()  # else episodes of many steps could wait
        await self.session.sinks.ready()  # the same
        engines.learner.skipped(record.skipped)
        await self.in_flight.forget(position, engines.store)
        await self.checkpoints.settle()
        if self.checkpoints.none_yet:  # the trainer was lost while it wrote that of step 0
            await self.checkpoints.begin(position)
        metrics = self.meter.read(record, *await self._figures())
        return (
            metrics | self.tasks.metrics() | engines.trainer.metrics() | self.checkpoints.metrics() | OBSERVED.values()
        )

    async def _figures(self) -> tuple[dict[str, float], dict[str, float], Elsewhere]:
        """The generators', the sandbox's, and those of rollout workers."""
        elsewhere = await self.session.engines.rollouts.elsewhere()
        return await self.generator.metrics(), self.session.gym.sandbox_metrics(), elsewhere

    async def check_sync(self, step: int) -> dict[str, float]:
        trainer, rollout = self.session.engines.trainer, self.session.settled.recipe.rollout
        return await check_sync(self.session.gym, self.generator, trainer, rollout, step)

    async def evaluate(self, step: int, *, whole: bool) -> dict[str, float]:
        return held_out_metric((await self._evaluate(step, None if whole else self.config.eval_tasks)).to_mapping())

    def record(self, record: StepRecord, metrics: dict[str, float]) -> None:
        session, step = self.session, record.step
        self.folder.append_metrics(step, metrics)
        session.sinks.log(step, metrics, record.groups, record.skipped)
        session.reporter.step(step, self.config.steps, metrics, self._end_s)
        if session.settled.recipe.logging.save_episodes:
            logprobs = session.engines.learner.trained_logprobs
            self.session.background.add(partial(self._save_episodes, record, logprobs))

    async def save(self, position: Position, *, wait: bool) -> None:
        await self.session.background.done()
        await (self.checkpoints.save if wait else self.checkpoints.begin)(position)

    async def answer_requests(self, position: Position, held: Held) -> bool:
        step = position.step

        async def save() -> bool:
            known = self.state.position is not None and self.state.position.step == step
            if not known:
                await self.save(position, wait=True)
            return known

        async def evaluate() -> bool:
            at_the_end = step == self.config.steps and self.measures_ends  # it follows anyway
            known = at_the_end or bool(read_record(self.folder, step).get("result"))
            if not known:
                await held()
                await self._evaluate(step, self.config.eval_tasks)
            return known

        async def change(setting: str, value: Json) -> str:
            made = self.changes.make(step, setting, value)
            if made is not None:
                await self._apply(made)
            return "it has this value already" if made is None else str(made)

        for one in self.changes.due(step):
            await self._apply(one)
        await self.control.after_step(step, save=save, evaluate=evaluate, change=change)
        return bool(self.control.stopped)

    async def _apply(self, change: Change) -> None:
        recipe, trainer = self.changes.recipe, self.session.engines.trainer
        self.config = recipe.loop
        match changeable(change.setting).applied_by:
            case "trainer":
                await trainer.set_rate(recipe.optimizer.lr)
            case "checkpoints":
                self.checkpoints.keep = recipe.loop.keep_checkpoints
        self.session.reporter.note(f"after step {change.step}: {change}")

    def release(self, position: Position) -> None:
        self.last = position
        self.session.background.add(partial(self._mark, asdict(position)))
        self.learner.lock.release()

    async def end_without_signal(self, groups: list[Group], position_at: Callable[[int, int], Position]) -> str:
        step = self.done + 1
        await self.session.background.done()
        if self.session.settled.recipe.logging.save_episodes:  # no step has saved them
            self.folder.save_groups(step, [], groups)
        reason = nothing_left(groups)
        self.session.reporter.note(f"step {step}: {reason}")
        self.folder.event(reason)
        async with self.learner.lock:
            await self.checkpoints.save(position_at(self.done, max(group.group_id for group in groups) + 1))
        return reason

    async def end(self, nothing_left: str) -> TrainResult:
        await self.session.background.done()
        stopped = self.control.stopped if self.done < self.config.steps else ""
        first = self.state.first_eval
        if self.measures_ends and not stopped and self.done:
            await self.generator.update_weights(self.done)  # a changed loop may have held them back
            last = await self._evaluate(self.done)
            result = compare_ends(self.folder, self.session.reporter, self.done, first, last)
        else:
            result = TrainResult(run_dir=self.folder.path, steps=self.done, first=first, last=None, difference=None)
        return replace(result, nothing_left=nothing_left, stopped=stopped)

    async def leave(self) -> TrainResult:
        """Save the last step that ended. Call it with the lock: no step begins after that."""
        await self.session.background.done()
        await self.checkpoints.save(self.last)
        reason = f"preempted; saved after step {self.done}"
        first = self.state.first_eval
        return TrainResult(
            run_dir=self.folder.path, steps=self.done, first=first, last=None, difference=None, stopped=reason
        )

    async def _evaluate(
        self, step: int, num_tasks: int | None = None, forecast: PlayedForecast | None = None
    ) -> EvalResult:
        """Evaluates the weights that the generators hold, which are those after `step`."""
        session, name = self.session, checkpoint_name(step)
        return await measure(
            session.gym,
            session.engines.player,
            self.folder,
            session.reporter,
            session.sinks,
            step=step,
            name=name,
            num_tasks=num_tasks,
            forecast=forecast,
        )

    def _mark(self, position: dict[str, Json]) -> None:
        """Marks the step as ended, in a thread, once all that it leaves would outlast a power cut."""
        self.folder.sync_metrics()
        self.session.engines.trainer.journal.mark(position)

    def _save_episodes(self, record: StepRecord, logprobs: Sequence[float]) -> None:
        """Saves the episodes, in a thread. logprobs: the trainer's, of the trained tokens."""
        of_turns = by_turn(record.groups, logprobs) if self.session.settled.keeps_logprobs else None
        self.folder.save_groups(record.step, record.groups, record.skipped, of_turns)
