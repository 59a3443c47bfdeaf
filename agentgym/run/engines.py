"""Starts what samples and trains in a run: generators, trainer, and the models that a loss or an advantage asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym.actors.runtime import Runtime
from agentgym.generators.service import GeneratorService
from agentgym.recipe import Recipe
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.garbage import swept
from agentgym.run.credit import make_credit
from agentgym.run.gym import Gym
from agentgym.run.hosts import runtime_of
from agentgym.run.in_flight import opened_with
from agentgym.run.trainer_setup import trainer_setup
from agentgym.run.watchdog import watched
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.trainer.journal import Journal
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.learner import TitanLearner
from agentgym.trainer.reference import BaseOfTrainer, ReferenceModel
from agentgym.weights.store import WeightStore

Load = Callable[[TrainerKeeper], Awaitable[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """All started, and at the same version of the weights. reference: None for a loss and an advantage without one."""

    player: EpisodePlayer
    generator: GeneratorService
    trainer: TrainerKeeper
    reference: ReferenceModel | BaseOfTrainer | None
    learner: TitanLearner
    store: WeightStore


async def begin_anew(trainer: TrainerKeeper) -> int:
    """With the model as it is, which is version 0."""
    return 0


@dataclass(slots=True, kw_only=True)
class EngineRoom:
    """What the engines are made from. stack: everything that is started is closed with it, in reverse order.

    teacher: the folder of the advantage's teacher, if it has one. reference_path: of the reference model, if it is not
    the model. load: given the started trainer, loads what is continued and returns the version of its weights.
    """

    recipe: Recipe
    folder: RunFolder
    reporter: Reporter
    gym: Gym
    stack: AsyncExitStack
    model_path: Path
    journal: Journal
    teacher: Path | None = None
    reference_path: Path | None = None
    keep_logprobs: bool = False
    load: Load = begin_anew

    async def start(self) -> Engines:
        stack = self.stack
        await stack.enter_async_context(swept())
        await stack.enter_async_context(watched(self.gym.activity, logs=self.folder.path / "logs"))
        opening = runtime_of(self.recipe, self.folder.path, self.model_path, self.reporter.note)
        runtime = await stack.enter_async_context(opening)
        store = await opened_with(self.recipe).open(self.folder.name, runtime=runtime)
        stack.push_async_callback(store.close)
        with self.gym.activity.doing("start"):
            return await self._start(runtime, store)

    async def _start(self, runtime: Runtime, store: WeightStore) -> Engines:
        """Trainer, generators and reference start at the same time, then all hold the same version.

        Generators on a GPU of the trainer start first: vLLM ends where memory is freed while it measures what there is.
        """
        recipe = self.recipe
        names = f"{recipe.generator.replicas} generator replicas and {recipe.trainer.procs} trainer process(es)"
        self.reporter.phase(f"starting {names}")
        in_gpu = recipe.weights.store.gpu_memory
        setup = trainer_setup(recipe, self.folder, str(self.model_path), keep_logprobs=self.keep_logprobs)
        trainer = TrainerKeeper(setup, journal=self.journal, store=store, runtime=runtime, holds_weights=in_gpu)
        generator = GeneratorService(
            config=recipe.generator,
            store=store,
            model_path=str(self.model_path),
            runtime=runtime,
            peer_gpus=recipe.trainer.gpus if recipe.weights.store.gpu_peers else (),
            revive=trainer.revive if in_gpu else None,
        )
        early = bool(recipe.trainer.gpus and recipe.trainer.reference_gpus) and not recipe.loop.deterministic
        reference: ReferenceModel | BaseOfTrainer | None = BaseOfTrainer(trainer) if recipe.needs_reference else None
        if recipe.needs_reference_model:
            path = str(self.reference_path or self.model_path)
            of_reference = replace(setup, model_path=path, base_path=setup.model_path)
            reference = ReferenceModel(of_reference, store=store, runtime=runtime, early=early)
        credit = make_credit(recipe, setup, self.teacher, runtime, early=early)
        in_turns = recipe.generator.engine.sleeps
        first = in_turns or bool({*recipe.trainer.gpus} & {*recipe.generator.gpus})
        if first:
            self.stack.push_async_callback(generator.close)
            await generator.start()
        if in_turns:
            await generator.sleep()
        async with asyncio.TaskGroup() as starting:
            for service in (None if first else generator, trainer, reference, credit.teacher):
                if service is not None and not isinstance(service, BaseOfTrainer):
                    self.stack.push_async_callback(service.close)
                    starting.create_task(service.start())
        version = await self.load(trainer)
        await trainer.push_weights(version)
        await generator.update_weights(version)
        learner = TitanLearner(
            trainer=trainer,
            reference=reference,
            credit=credit,
            activity=self.gym.activity,
            keep_logprobs=self.keep_logprobs,
            branch_weights=recipe.rollout.branch_weights,
            sleeper=generator if in_turns else None,
        )
        return Engines(
            player=self.gym.player(generator),
            generator=generator,
            trainer=trainer,
            reference=reference,
            learner=learner,
            store=store,
        )
