"""Starts what samples and trains in a run: generators, trainer, and the models that a loss or an advantage asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym.actors.host_care import check_model, open_runtime
from agentgym.actors.runtime import Runtime
from agentgym.generators.service import GeneratorService
from agentgym.recipe import Recipe
from agentgym.rl.advantages import Advantage
from agentgym.rollout.activity import Activity
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.garbage import swept
from agentgym.rollout.playing import GroupPlayer, Rollouts
from agentgym.run.gym import Gym
from agentgym.run.resume import JOURNAL, StartPoint
from agentgym.run.rollout_worker import WorkerSetup
from agentgym.run.rollout_workers import RolloutWorkers
from agentgym.run.settle import Settled
from agentgym.run.watchdog import watched
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.text.tokenizer import read_template
from agentgym.trainer.credit import Credit
from agentgym.trainer.journal import Journal
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.learner import TitanLearner
from agentgym.trainer.reference import BaseOfTrainer, ReferenceModel
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.config import WeightsConfig
from agentgym.weights.select import SharedMemoryConfig
from agentgym.weights.store import WeightStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """All started, and at the same version of the weights. reference: None for a loss and an advantage without one."""

    player: EpisodePlayer
    rollouts: Rollouts
    generator: GeneratorService
    trainer: TrainerKeeper
    reference: ReferenceModel | BaseOfTrainer | None
    learner: TitanLearner
    store: WeightStore


async def start_engines(
    settled: Settled, folder: RunFolder, reporter: Reporter, gym: Gym, start: StartPoint, stack: AsyncExitStack
) -> Engines:
    """Start them at the run's start point. stack: closes all that was started, in reverse order."""
    await stack.enter_async_context(swept())
    await stack.enter_async_context(watched(gym.activity, logs=folder.path / "logs"))
    recipe = settled.recipe
    runtime = await stack.enter_async_context(runtime_of(recipe, folder.path, settled.model, reporter.note))
    store = await recipe.weights.open(folder.name, runtime=runtime)
    stack.push_async_callback(store.close)
    reporter.phase(
        f"starting {recipe.generator.replicas} generator replicas and {recipe.trainer.procs} trainer process(es)"
        + (f", and {recipe.rollout.workers} rollout worker(s)" if recipe.rollout.workers else "")
    )
    with gym.activity.doing("start"):
        return await _start(settled, folder, reporter, gym, start, stack, runtime, store)


async def _start(
    settled: Settled,
    folder: RunFolder,
    reporter: Reporter,
    gym: Gym,
    start: StartPoint,
    stack: AsyncExitStack,
    runtime: Runtime,
    store: WeightStore,
) -> Engines:
    """Trainer, generators and reference start at the same time, then all hold the same version.

    On a GPU that both have, vLLM waits until the trainer has compiled a step, and the others start after these two.
    Where they take turns, generators start first, since each needs the memory of the other; meanwhile the trainer's
    processes load their libraries.
    """
    began_s = time.monotonic()

    async def started(name: str, starting: Awaitable[None]) -> None:
        await starting
        reporter.note(f"started      {name}, {time.monotonic() - began_s:.1f} s after the first process")

    recipe, in_gpu = settled.recipe, settled.recipe.weights.store.gpu_memory
    setup = trainer_setup(recipe, settled.model, folder.path / "trainer", keep_logprobs=settled.keeps_logprobs)
    in_turns = recipe.generator.engine.sleeps
    of_trainer = replace(setup, warm_up=not in_turns)
    trainer = TrainerKeeper(
        of_trainer, journal=Journal(folder.path / JOURNAL), store=store, runtime=runtime, holds_weights=in_gpu
    )
    generator = GeneratorService(
        config=recipe.generator,
        store=store,
        model_path=str(settled.model),
        runtime=runtime,
        peer_gpus=recipe.trainer.gpus if recipe.weights.store.gpu_peers else (),
        revive=trainer.revive if in_gpu else None,
        folder_is_first=recipe.model.quantize == "none",
    )
    early = bool(recipe.trainer.gpus and recipe.trainer.reference_gpus) and not recipe.loop.deterministic
    reference: ReferenceModel | BaseOfTrainer | None = BaseOfTrainer(trainer) if recipe.needs_reference else None
    if recipe.needs_reference_model:
        path = str(_followed_reference(folder, start) or settled.model)
        of_reference = replace(setup, model_path=path, base_path=setup.model_path)
        reference = ReferenceModel(of_reference, store=store, runtime=runtime, early=early)
    credit = make_credit(recipe.advantage, settled.teacher, setup, runtime, early=early)
    shared = bool({*recipe.trainer.gpus} & {*recipe.generator.gpus})
    begun = {"generators"} if in_turns else {"generators", "trainer"} if shared else set[str]()
    if begun:
        stack.push_async_callback(generator.close)
        stack.push_async_callback(trainer.close)
        async with asyncio.TaskGroup() as starting:
            starting.create_task(started("generators", generator.start()))
            starting.create_task(trainer.prepare() if in_turns else started("trainer", trainer.start()))
    if in_turns:
        await generator.sleep()
    workers: RolloutWorkers | None = None
    if recipe.rollout.workers:
        workers = RolloutWorkers(
            WorkerSetup.of(recipe, settled.model),
            rollout=recipe.rollout,
            generators=recipe.generator,
            generator=generator,
            runtime=runtime,
            activity=gym.activity,
        )
    services = {"trainer": trainer, "reference": reference, "teacher": credit.teacher, "rollout workers": workers}
    async with asyncio.TaskGroup() as starting:
        for name, service in ({"generators": generator} | services).items():
            if name not in begun and service is not None and not isinstance(service, BaseOfTrainer):
                stack.push_async_callback(service.close)
                starting.create_task(started(name, service.start()))
    version = start.position.step
    await _go_on(trainer, folder, start)
    await trainer.push_weights(version)
    await generator.update_weights(version)
    learner = TitanLearner(
        trainer=trainer,
        reference=reference,
        credit=credit,
        activity=gym.activity,
        keep_logprobs=settled.keeps_logprobs,
        branch_weights=recipe.rollout.branch_weights,
        sleeper=generator if in_turns else None,
    )
    player = gym.player(generator)
    if workers is not None:
        workers.connect()
    return Engines(
        player=player,
        rollouts=workers or GroupPlayer(player=player),
        generator=generator,
        trainer=trainer,
        reference=reference,
        learner=learner,
        store=store,
    )


async def start_trainer(
    settled: Settled,
    folder: RunFolder,
    reporter: Reporter,
    start: StartPoint,
    stack: AsyncExitStack,
    *,
    activity: Activity,
    steps: int,
) -> TrainerKeeper:
    """Start the trainer alone at the run's start point. stack: closes all that was started. steps: of the whole run."""
    await stack.enter_async_context(watched(activity, logs=folder.path / "logs"))
    recipe = settled.recipe
    runtime = await stack.enter_async_context(runtime_of(recipe, folder.path, settled.model, reporter.note))
    reporter.phase(f"starting {recipe.trainer.procs} trainer process(es)")
    setup = trainer_setup(recipe, settled.model, folder.path / "trainer", steps=steps)
    trainer = TrainerKeeper(setup, journal=Journal(folder.path / JOURNAL), runtime=runtime)
    trainer.journal.clear()
    stack.push_async_callback(trainer.close)
    with activity.doing("start"):
        await trainer.start()
        await _go_on(trainer, folder, start)
    return trainer


async def _go_on(trainer: TrainerKeeper, folder: RunFolder, start: StartPoint) -> None:
    if start.checkpoint is not None:
        saved = folder.checkpoint_dir(start.checkpoint) / "trainer"
        await trainer.resume(start.checkpoint, saved, until=start.position.step)


@asynccontextmanager
async def started_generators(
    settled: Settled, reporter: Reporter, *, name: str, log_dir: Path, activity: Activity
) -> AsyncIterator[GeneratorService]:
    """Generators without a trainer. They answer inside the block. name: of the run, for its weights' place."""
    recipe, quantize = settled.recipe, settled.recipe.model.quantize
    async with AsyncExitStack() as stack:
        opening = runtime_of(recipe, log_dir.parent, settled.model, reporter.note)
        runtime = await stack.enter_async_context(opening)
        weights = WeightsConfig(store=SharedMemoryConfig()) if quantize != "none" else recipe.weights
        store = await weights.open(name, runtime=runtime)
        stack.push_async_callback(store.close)
        reporter.phase(f"starting {recipe.generator.replicas} generator replicas")
        generator = GeneratorService(
            config=recipe.generator,
            store=store,
            model_path=str(settled.model),
            runtime=runtime,
            folder_is_first=quantize == "none",
        )
        stack.push_async_callback(generator.close)
        with activity.doing("start"):
            await generator.start()
            if quantize != "none":
                await generator.load_quantized(quantize, recipe.trainer.dtype)
        yield generator


@asynccontextmanager
async def runtime_of(
    recipe: Recipe, folder: Path, model_path: Path, note: Callable[[str], None]
) -> AsyncIterator[Runtime]:
    """The runtime on the hosts of a recipe.

    folder: of the run, which all hosts must see; its `logs` get what the processes print. Raises UserError, with the
    host's name, for a host that can't take part.
    """
    async with open_runtime(
        launcher=recipe.launcher,
        hosts_config=recipe.hosts,
        log_dir=folder / "logs",
        patience_s=recipe.patience_s,
        shared=[folder],
        note=note,
    ) as runtime:
        await check_model(runtime, model_path)
        yield runtime


def trainer_setup(
    recipe: Recipe, model_path: Path, folder: Path, *, keep_logprobs: bool = False, steps: int | None = None
) -> TrainerSetup:
    """What a trainer is built from. folder: for its own files. keep_logprobs: see TrainerSetup. steps: of the run."""
    return TrainerSetup(
        model_path=str(model_path),
        trainer=recipe.trainer,
        optimizer=recipe.optimizer,
        loss=recipe.loss,
        total_steps=recipe.loop.steps if steps is None else steps,
        folder=str(folder),
        temperature=1.0 if recipe.sft else recipe.rollout.temperature,  # nobody sampled what is imitated
        publish_dtype=recipe.generator.dtype,
        chat_template=read_template(recipe.model.chat_template),
        keep_logprobs=keep_logprobs,
        critic=recipe.advantage.needs_critic,
        quantize=recipe.model.quantize,
    )


def make_credit(
    advantage: Advantage, teacher: Path | None, setup: TrainerSetup, runtime: Runtime, *, early: bool = False
) -> Credit:
    """What the advantage needs beside the trainer: a critic, and a teacher that is not started yet.

    early: see ReferenceModel.
    """
    model = None
    if teacher is not None:
        of_teacher = replace(setup, model_path=str(teacher))
        model = ReferenceModel(of_teacher, runtime=runtime, name="teacher", early=early)
    return Credit(advantage=advantage, teacher=model)


def _followed_reference(folder: RunFolder, start: StartPoint) -> Path | None:
    """The reference model of the checkpoint, where it followed the policy."""
    if start.checkpoint is None:
        return None
    saved = folder.checkpoint_dir(start.checkpoint) / "reference"
    return saved if saved.is_dir() else None
