"""The training job: start the services, run the loop, save and measure checkpoints, stop everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from agentgym.config import to_mapping
from agentgym.evals.play import EvalResult
from agentgym.generators.select import settle_engine
from agentgym.generators.service import GeneratorService
from agentgym.hooks import PluginRegistry
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.rl.advantages import assign_advantages
from agentgym.rl.ending import nothing_left
from agentgym.rl.loop import Position, StepRecord, TrainingLoop
from agentgym.rl.trained import by_turn
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.group import InfraMonitor, play_group
from agentgym.rollout.tasks import TaskStream
from agentgym.run.behind import Behind
from agentgym.run.checkpoints import Checkpoints
from agentgym.run.continuing import journal_position
from agentgym.run.credit import find_teacher
from agentgym.run.ending import TrainResult, checkpoint_name, compare_ends, measure_end
from agentgym.run.engines import EngineRoom
from agentgym.run.gym import Gym, check_sampling
from agentgym.run.in_flight import InFlight, settle_deterministic
from agentgym.run.measure import measure
from agentgym.run.metrics import StepMeter
from agentgym.run.places import settle_places
from agentgym.run.preempting import Turns, until_noticed
from agentgym.run.resume import resumed_state, undo_later_steps
from agentgym.run.sinks import Sinks
from agentgym.run.state import RunState
from agentgym.run.steering import Helm
from agentgym.run.sync_check import check_sync
from agentgym.runs.checkpoints import drop_undone, drop_unfinished
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.runs.starts import record_start
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.journal import Journal
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.learner import TitanLearner
from agentgym.trainer.reference import BaseOfTrainer, ReferenceModel
from agentgym.types import Group, Json, Task
from agentgym.weights.store import WeightStore


async def train(
    recipe: Recipe,
    folder: RunFolder,
    reporter: Reporter,
    *,
    resume: bool = False,
    from_step: int | None = None,
    registry: PluginRegistry | None = None,
    notice: asyncio.Event | None = None,
    change_loop: Callable[[TrainingLoop], None] = lambda loop: None,
) -> TrainResult:
    """Train to the recipe's last step. On any end, everything that was started is gone when this returns.

    from_step: where to resume; the newest whole checkpoint and the steps of the journal after it otherwise. notice:
    once it is set, the run saves between two steps and ends. change_loop: called with the loop before it runs, for
    experiments. Raises UserError before anything is started for what the user must fix; InfraError for
    what broke.
    """
    model_path = resolve_model(recipe.model.path, folder.path, random_weights=recipe.model.random_weights)
    architecture = read_architecture(model_path)  # raises for what can't be trained
    engine = settle_engine(recipe.generator, str(model_path), reporter.note)
    recipe = settle_places(settle_deterministic(replace(recipe, generator=engine)), architecture, reporter.note)
    teacher = find_teacher(recipe, model_path, folder.path)
    lora = recipe.trainer.lora
    state = resumed_state(folder, model_path, from_step, reporter.note, lora) if resume else RunState()
    if state.position is not None and state.position.step >= recipe.loop.steps:
        return await measure_end(recipe, folder, reporter, state, registry)
    journal, begin = Journal(folder.path / "journal"), None
    if state.position is not None and from_step is None:
        begin = journal_position(folder, journal, state.position.step, recipe, reporter.note)
    job = TrainJob(
        recipe=recipe,
        folder=folder,
        reporter=reporter,
        registry=registry or PluginRegistry.discover(recipe.plugins.disabled),
        model_path=model_path,
        teacher=teacher,
        state=state,
        journal=journal,
        begin=begin,
        change_loop=change_loop,
    )
    return await until_noticed(job.run(), notice or asyncio.Event(), job.leave)


@dataclass(slots=True, kw_only=True)
class TrainJob:
    """One run. Everything that it starts is on `stack`, and is closed in reverse order.

    begin: where it goes on by the journal, behind the state's checkpoint; None is at that. last: the position that a
    checkpoint would have now, between two steps; None before there is one.
    """

    recipe: Recipe
    folder: RunFolder
    reporter: Reporter
    registry: PluginRegistry
    model_path: Path
    teacher: Path | None
    state: RunState
    journal: Journal
    begin: Position | None
    change_loop: Callable[[TrainingLoop], None]
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    gym: Gym = field(init=False)
    player: EpisodePlayer = field(init=False)
    generator: GeneratorService = field(init=False)
    trainer: TrainerKeeper = field(init=False)
    reference: ReferenceModel | BaseOfTrainer | None = None
    sinks: Sinks = field(default_factory=Sinks)
    meter: StepMeter = field(init=False)
    monitor: InfraMonitor = field(init=False)
    tasks: TaskStream = field(init=False)
    loop: TrainingLoop = field(init=False)
    learner: TitanLearner = field(init=False)
    in_flight: InFlight = field(init=False)
    checkpoints: Checkpoints = field(init=False)
    store: WeightStore = field(init=False)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # held from the beginning of a step to its end
    last: Position | None = None
    helm: Helm = field(init=False)
    behind: Behind = field(default_factory=Behind)  # episodes of a step, and its mark, while the next one goes on
    done: int = 0  # steps

    @property
    def keeps_logprobs(self) -> bool:
        logging = self.recipe.logging
        return logging.save_episodes and logging.trainer_logprobs

    async def run(self) -> TrainResult:
        """All of it in one task: some of what is opened must be closed by the task that opened it."""
        async with self.stack:
            return await self._run()

    async def _run(self) -> TrainResult:
        recipe, state = self.recipe, self.state
        self.helm = Helm(self.folder)
        self.in_flight = InFlight(folder=self.folder, pinned=recipe.loop.deterministic)
        await self._start()
        if state.position is not None:
            await self.in_flight.restore(state.position, (self.begin or state.position).next_group, self.trainer)
        if self.begin is not None:
            drop_undone(self.folder, self.begin.step)
            await self.checkpoints.save(self.begin)
        elif state.position is None:
            await self.checkpoints.save(Position())
        else:
            undo_later_steps(self.folder, state)
        drop_unfinished(self.folder)
        self.journal.clear()
        self.last = state.position
        if recipe.eval.at_end and state.first_eval is None and state.position == Position():
            state.first_eval = await self._evaluate(0, recipe.eval.tasks)
            self.folder.save_state(state.to_mapping())
        without_signal = await self._train()
        ended = await self._end_early(without_signal) if without_signal else ""
        first = state.first_eval
        stopped = self.helm.stopped if self.done < recipe.loop.steps else ""
        if recipe.eval.at_end and not stopped and self.done:
            await self.generator.update_weights(self.done)  # a changed loop may have held them back
            last = await self._evaluate(self.done, recipe.eval.tasks)
            result = compare_ends(self.folder, self.reporter, self.done, first, last)
        else:
            result = TrainResult(run_dir=self.folder.path, steps=self.done, first=first, last=None, difference=None)
        return replace(result, nothing_left=ended, stopped=stopped)

    async def _start(self) -> None:
        recipe, stack = self.recipe, self.stack
        check_sampling(recipe)
        self.gym = await Gym.open(recipe, self.model_path, self.registry, self.reporter, training=True)
        stack.push_async_callback(self.gym.close)
        if self.gym.capabilities is not None:
            self.folder.save_sandbox(self.gym.capabilities)
        self.sinks = await self.stack.enter_async_context(Sinks.opened(self.recipe, self.folder, self.registry))
        room = EngineRoom(
            recipe=recipe,
            folder=self.folder,
            reporter=self.reporter,
            gym=self.gym,
            stack=stack,
            model_path=self.model_path,
            journal=self.journal,
            teacher=self.teacher,
            reference_path=self._reference_path(),
            keep_logprobs=self.keeps_logprobs,
            load=self._load,
        )
        engines = await room.start()
        self.player, self.generator, self.trainer = engines.player, engines.generator, engines.trainer
        self.reference, self.learner, self.store = engines.reference, engines.learner, engines.store
        self.checkpoints = Checkpoints(
            folder=self.folder,
            state=self.state,
            trainer=self.trainer,
            reference=self.reference,
            in_flight=self.in_flight,
            activity=self.gym.activity,
            keep=recipe.loop.keep_checkpoints,
            note=self.reporter.note,
        )
        stack.push_async_callback(self.behind.close)
        stack.callback(self.gym.activity.begin, "stop")  # called first of all when the run ends
        self.monitor = InfraMonitor(recipe.rollout.max_infra_error_share)

    async def _load(self, trainer: TrainerKeeper) -> int:
        """What the run goes on with, after how many steps."""
        step = 0
        if self.state.position is not None:
            saved = self.state.position.step
            step = saved if self.begin is None else self.begin.step
            await trainer.resume(saved, self.folder.checkpoint_dir(saved) / "trainer", until=step)
        machine = await trainer.call(TitanTrainer.get_machine)
        record_start(self.folder, step=step, config=cast("dict[str, Json]", to_mapping(self.recipe)), machine=machine)
        return step

    def _reference_path(self) -> Path | None:
        """A resumed run goes on with the reference model of its checkpoint, where that followed the policy."""
        position = self.state.position
        saved = self.folder.checkpoint_dir(position.step if position else 0) / "reference"
        return saved if position and saved.is_dir() else None

    async def _train(self) -> list[Group]:
        """The groups without signal that ended the run before its last step, if some did."""
        recipe = self.recipe
        position = self.state.position or Position()
        self.done = position.step
        self.tasks = recipe.task_sampler.stream(
            self.gym.environment,
            recipe.loop.seed,
            position.next_group,
            in_flight=recipe.loop.num_slots,
            state=position.tasks,
        )
        self.loop = loop = TrainingLoop(
            config=recipe.loop,
            tasks=self.tasks,
            rollout=self._rollout,
            learner=Turns(self.learner, self.turn),
            generator=self.generator,
            after_step=self._after_step,
            position=position,
        )
        self.helm.begin(self.done)
        self.change_loop(loop)
        self.reporter.phase(f"training {recipe.loop.steps - position.step} steps")
        before = await self.generator.metrics()
        self.meter = StepMeter(
            activity=self.gym.activity,
            tokens_before=before.get("generator/tokens_total", 0.0),
            sandbox_before=self.gym.sandbox_metrics(),
        )
        without_signal = await loop.run()
        await self.behind.done()
        return without_signal

    async def _end_early(self, groups: list[Group]) -> str:
        """Save what a run ends with whose last groups had no signal, and say why.

        Raises InfraError when the cause is not the policy; see `nothing_left`.
        """
        if self.recipe.logging.save_episodes:  # no step has saved them
            self.folder.save_groups(self.done + 1, [], groups)
        reason = nothing_left(groups)
        self.reporter.note(f"step {self.done + 1}: {reason}")
        self.folder.event(reason)
        async with self.turn:
            await self.checkpoints.save(self.loop.position_at(self.done, max(group.group_id for group in groups) + 1))
        return reason

    async def _rollout(self, task: Task, group_id: int) -> Group:
        loop = self.recipe.loop
        play = partial(play_group, task=task, group_id=group_id, size=loop.group_size, run_seed=loop.seed)
        group = await self.in_flight.play(self.player, task, group_id, self.loop.began[group_id], loop.group_size, play)
        for episode in group.episodes:
            self.monitor.add(episode)
        assign_advantages(group, self.recipe.advantage)
        self.learner.ended(group)
        return group

    async def _after_step(self, record: StepRecord) -> None:
        loop, step = self.recipe.loop, record.step
        self.done = step
        await self.behind.done()  # else episodes of many steps could wait
        self.learner.skipped(record.skipped)
        await self.in_flight.forget(self.loop.position_at(step, record.next_group), self.store)
        await self.checkpoints.settle()
        metrics = self.meter.read(record, await self.generator.metrics(), self.gym.sandbox_metrics())
        metrics |= self.tasks.metrics() | self.trainer.metrics() | self.checkpoints.metrics()
        last = step == loop.steps
        if loop.check_sync_every and step % loop.check_sync_every == 0:
            await self.loop.held()
            metrics |= await check_sync(self.gym, self.generator, self.trainer, self.recipe.rollout, step)
        if loop.eval_every and step % loop.eval_every == 0 and not last:
            await self.loop.held()
            result = await self._evaluate(step, loop.eval_tasks)
            if result.success is not None:
                metrics["eval/success"] = result.success
        self.folder.append_metrics(step, metrics)
        self.sinks.log(step, metrics, record.groups)
        self.reporter.step(step, loop.steps, metrics)
        if self.recipe.logging.save_episodes:
            self.behind.add(partial(self._save_episodes, record, self.learner.trained_logprobs))
        if last or (loop.checkpoint_every and step % loop.checkpoint_every == 0):
            await self.behind.done()
            save = self.checkpoints.save if last or not loop.checkpoint_in_background else self.checkpoints.begin
            await save(self.loop.position_at(step, record.next_group))
        await self.helm.after_step(step, save=partial(self._save_asked, record), evaluate=self._evaluate_asked)
        self.loop.stopping = bool(self.helm.stopped)
        self.last = self.loop.position_at(step, record.next_group)
        self.behind.add(partial(self._mark, asdict(self.last)))
        self.turn.release()

    def _mark(self, position: dict[str, Json]) -> None:
        """In a thread. The step has ended once all that it leaves would outlast a power cut."""
        self.folder.sync_metrics()
        self.journal.mark(position)

    def _save_episodes(self, record: StepRecord, logprobs: Sequence[float]) -> None:
        """In a thread. logprobs: the trainer's, of the trained tokens."""
        of_turns = by_turn(record.groups, logprobs) if self.keeps_logprobs else None
        self.folder.save_groups(record.step, record.groups, record.skipped, of_turns)

    async def _save_asked(self, record: StepRecord) -> bool:
        known = self.state.position is not None and self.state.position.step == record.step
        if not known:
            await self.behind.done()
            await self.checkpoints.save(self.loop.position_at(record.step, record.next_group))
        return known

    async def _evaluate_asked(self) -> bool:
        """After the last step it is measured anyway."""
        loop = self.recipe.loop
        known = self.done == loop.steps or bool(read_record(self.folder, self.done).get("result"))
        if not known:
            await self.loop.held()
            await self._evaluate(self.done, loop.eval_tasks)
        return known

    async def _evaluate(self, step: int, num_tasks: int) -> EvalResult:
        """Of the weights that the generators hold, which are those after `step`."""
        name = checkpoint_name(step)
        return await measure(
            self.gym, self.player, self.folder, self.reporter, step=step, name=name, num_tasks=num_tasks
        )

    async def leave(self) -> TrainResult:
        """Between two steps, save what there is. No step begins after that: the turn is not given back."""
        self.reporter.note("asked to leave: saves as soon as the step ends")
        await self.turn.acquire()
        await self.behind.done()
        if self.last is None:
            reason = "preempted before there was anything to save"
        else:
            await self.checkpoints.save(self.last)
            reason = f"preempted; saved after step {self.last.step}"
        first = self.state.first_eval
        return TrainResult(
            run_dir=self.folder.path, steps=self.done, first=first, last=None, difference=None, stopped=reason
        )
