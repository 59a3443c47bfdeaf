"""The services of a run, for a loop of one's own: what samples, plays, scores, trains, and moves weights.

Each is called by its methods: `await services.trainer.train_step(groups)`. `Call` has the other ways of asking.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.hooks import PluginRegistry
from agentgym.loops.pieces import Pieces
from agentgym.observed import OBSERVED
from agentgym.recipe import Recipe
from agentgym.rl.advantages import assign_advantages
from agentgym.rl.said import Said
from agentgym.rollout.tasks import TaskStream, open_stream
from agentgym.run.async_run import AsyncRun
from agentgym.run.calls import (
    BufferCalls,
    DatasetCalls,
    EnvironmentCalls,
    GeneratorCalls,
    RowCalls,
    StartedPieces,
    start_pieces,
)
from agentgym.run.checkpoints import CheckpointWriter
from agentgym.run.ending import checkpoint_name
from agentgym.run.evaluate import measure
from agentgym.run.gym import Gym
from agentgym.run.loop_state import LoopState, find_saved, pickled, save_loop
from agentgym.run.metrics import StepClock, group_counts, rollout_metrics
from agentgym.run.resume import StartPoint, find_start
from agentgym.run.session import Session, open_session
from agentgym.run.settle import settle
from agentgym.run.sft_run import SftRun
from agentgym.run.sinks import open_sinks
from agentgym.run.training_calls import ReferenceCalls, RewardCalls, TrainerCalls, group_of
from agentgym.runs.checkpoints import drop_undone, prune
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.trainer.checkpoint import check_adapters
from agentgym.trainer.reference import ReferenceModel
from agentgym.types import Group, Json


@dataclass(slots=True, kw_only=True)
class Services:
    """What a loop is made of. All of them hold the weights of the session's start point, version 0 for a new run.

    reference: None where the loss needs none. rows: None where no data sets were asked for.
    """

    session: Session
    dataset: DatasetCalls
    environment: EnvironmentCalls
    rewards: RewardCalls
    generator: GeneratorCalls
    trainer: TrainerCalls
    reference: ReferenceCalls | None
    replay_buffer: BufferCalls
    rows: RowCalls | None
    checkpoints: CheckpointWriter
    _clock: StepClock
    _loaded: int = -1  # the step that the loop went on from

    @classmethod
    def of(cls, session: Session, pieces: StartedPieces) -> Services:
        engines, gym, recipe = session.engines, session.gym, session.settled.recipe
        slots, sampler = recipe.loop.num_slots, recipe.task_sampler

        def stream(start: int, state: Json) -> TaskStream:
            return open_stream(sampler, gym.environment, recipe.loop.seed, start, in_flight=slots, state=state)

        pieces.buffer.version = lambda: engines.generator.version
        dataset = DatasetCalls(stream, in_flight=slots)
        checkpoints = CheckpointWriter(
            folder=session.folder,
            trainer=engines.trainer,
            activity=gym.activity,
            note=session.reporter.note,
            reference=engines.reference,
        )
        return cls(
            session=session,
            dataset=dataset,
            environment=EnvironmentCalls(gym, engines, recipe.loop, recipe.advantage, dataset),
            rewards=RewardCalls(gym.scorer, pieces.responses),
            generator=GeneratorCalls(
                engines.generator, gym.renderer, recipe.generator, recipe.rollout, completions=pieces.asked.completions
            ),
            trainer=TrainerCalls(
                engines.learner, engines.trainer, checkpoints, session.sinks, recipe.advantage, pieces.asked.loss
            ),
            reference=None if engines.reference is None else ReferenceCalls(engines.reference),
            replay_buffer=pieces.buffer,
            rows=pieces.rows,
            checkpoints=checkpoints,
            _clock=StepClock(gym.activity),
        )

    @property
    def recipe(self) -> Recipe:
        return self.session.settled.recipe

    @property
    def folder(self) -> RunFolder:
        return self.session.folder

    @property
    def gym(self) -> Gym:
        return self.session.gym

    async def begin(self) -> AsyncRun:
        """Opens the run for `agentgym.loops.async_rl.train`: continues where the folder is, or saves a checkpoint of
        step 0.
        """
        return await AsyncRun.begin(self.session)

    def group(self, group_id: int, said: Sequence[Said], rewards: Sequence[float | Mapping[str, float]]) -> Group:
        """Completions of one prompt that the loop sampled and scored itself, with their advantages, to be trained.

        rewards: one for each, or by name, of which the mean counts.
        One that a limit cut keeps its reward, and is not trained on where the recipe says `rollout.cut_turns: mask`.
        """
        masks_cut = self.recipe.rollout.cut_turns == "mask"
        group = group_of(group_id, said, rewards, self.session.gym.renderer, masks_cut=masks_cut)
        assign_advantages(group, self.recipe.advantage)
        return group

    def record(
        self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], skipped: Sequence[Group] = ()
    ) -> None:
        """Records metrics and the episodes of this step: in the run's folder, in `logging.sinks`, and on the terminal.

        skipped: those that were played for it and not trained. The sinks are fed in a thread; what one raises is raised
        here at a later step, or at the end.

        Times are since the last call, the first since the services started; see StepClock.
        """
        played = [episode for group in [*groups, *skipped] for episode in group.episodes]
        own = {**self.dataset.stream.metrics(), **self.session.engines.trainer.metrics(), **self.checkpoints.metrics()}
        own |= OBSERVED.values()
        rollout = rollout_metrics(played) if played else {}  # what was not measured is no zero
        found = {**rollout, **group_counts(groups, skipped), **self._clock.read(), **own, **metrics}
        self.folder.append_metrics(step, found)
        self.session.sinks.log(step, found, groups, skipped)
        if self.recipe.logging.save_episodes:
            self.folder.save_groups(step, groups, skipped)
        self.session.reporter.step(step, self.recipe.loop.steps, found)

    async def evaluate(self, step: int, num_tasks: int | None = None) -> EvalResult:
        """The generators' weights, which are those after `step`, on held-out tasks; saved in the run's folder.

        Up to the step that `load` went on from it is what the folder has. Raises UserError where that is nothing.
        """
        known = read_record(self.folder, step).get("result") if step <= self._loaded else None
        if isinstance(known, Mapping):
            return EvalResult.from_mapping(known)
        if step < self._loaded:
            raise UserError(f"{self.folder.path} has no measure of the weights after step {step}, which are gone")
        session, name = self.session, checkpoint_name(step)
        player = session.engines.player
        return await measure(
            session.gym, player, self.folder, session.reporter, session.sinks, step=step, name=name, num_tasks=num_tasks
        )

    async def save(self, step: int, *, next_task: int | None = None, wait: bool = True) -> Path:
        """A checkpoint that `load` goes on from and `agentgym eval` reads, named by the loop's own step.

        It keeps the trainer, the position in the tasks, the replay buffer and the rows. next_task: the first task that
        no step has taken, for a loop that samples ahead; by default all that were sampled are done. Returns its folder.

        wait: until it is whole. Else it is copied, and written while the loop goes on: it is whole after one of the
        next train_step, at the next save, or when the services end.
        """
        await self.checkpoints.wait()
        target, trainer = self.folder.checkpoint_dir(step), self.session.engines.trainer
        state = LoopState(
            optimizer_steps=(await self.trainer.get_status()).step,
            dataset=self.dataset.state_dict(next_task),
            replay_buffer=await self.replay_buffer.state_dict(),
            rows=None if self.rows is None else await self.rows.state_dict(),
        )
        kept, made = pickled(state), trainer.step  # by its count: a loop may leave steps out

        def count() -> None:
            save_loop(target, kept)
            trainer.saved(made, target / "trainer")
            prune(self.folder, self.recipe.loop.keep_checkpoints)

        if wait:
            await self.checkpoints.write(step)
            count()
        else:
            await self.checkpoints.begin_write(step, count)
        return target

    async def load(self, step: int | None = None) -> int:
        """Go on where `save` was, before the first step: all that it kept, with its weights in the generators.

        step: of the checkpoint; the newest whole one of the run's folder otherwise. What later steps left there is
        removed. Returns the step, 0 for a run without checkpoints.
        """
        trainer, reference = self.session.engines.trainer, self.session.engines.reference
        if self.session.start.checkpoint is not None:
            raise UserError(
                f"{self.folder.path} has checkpoints of the asynchronous loop, which goes on with them by itself: "
                "agentgym.loops.async_rl.train(await services.begin()), or `agentgym train --resume`"
            )
        if made := (await self.trainer.get_status()).step:
            raise UserError(f"services.load comes before the first step, and this loop has made {made}")
        found = find_saved(self.folder, step, self.session.settled.model, self.session.reporter.note)
        if found is None:
            drop_undone(self.folder, -1)
            return 0
        step, state = found
        saved = self.folder.checkpoint_dir(step)
        check_adapters(str(saved / "trainer"), self.recipe.trainer.lora, self.recipe.model.quantize)
        self.dataset.load_state_dict(state.dataset)
        await self.replay_buffer.load_state_dict(state.replay_buffer)
        if self.rows is not None and state.rows is not None:
            await self.rows.load_state_dict(state.rows)
        elif self.rows is not None or state.rows is not None:
            raise UserError(f"only one of this loop and the checkpoint of step {step} has rows: give the same pieces")
        trainer.journal.clear()  # of an earlier process
        await trainer.resume(state.optimizer_steps, saved / "trainer", until=state.optimizer_steps)
        if isinstance(reference, ReferenceModel) and reference.moves:
            await reference.start_from(saved / "reference")
        drop_undone(self.folder, step)
        if step:  # version 0 is what they began with
            await trainer.push_weights(step)
            await self.session.engines.generator.update_weights(step)
        self._loaded = step
        return step


@asynccontextmanager
async def opened(
    recipe: Recipe, folder: RunFolder, reporter: Reporter, registry: PluginRegistry, pieces: Pieces, *, resume: bool
) -> AsyncIterator[Services | SftRun]:
    """Start them all; on any end they are gone when this returns. A run of fine-tuning starts its trainer itself.

    folder: of the run, open for writing. resume: whether an earlier process worked in it. Raises UserError before
    anything is started for what the user must fix; InfraError for what broke.
    """
    settled = settle(recipe, folder.path, reporter.note, registry)
    start = find_start(settled, folder, reporter.note) if resume and folder.has_state else StartPoint()
    if recipe.sft is not None:
        run = await SftRun.begin(settled, folder, reporter, start)
        async with open_sinks(settled, folder.path) as run.sinks:
            yield run
        return
    buffer = BufferCalls.of(recipe.loop, pieces)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(settled, folder, reporter, start))
        services = Services.of(session, await start_pieces(pieces, buffer, stack))
        yield services
        await services.checkpoints.finish()
