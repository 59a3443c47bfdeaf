"""Starts what samples and trains in a run: generators, trainer, and the models that a loss or an advantage asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from agentgym.actors.runtime import Runtime
from agentgym.generators.service import GeneratorService
from agentgym.jobs.credit import make_credit
from agentgym.jobs.gym import Gym
from agentgym.jobs.watchdog import watched
from agentgym.recipe import Recipe
from agentgym.rollout.episode import EpisodePlayer
from agentgym.rollout.garbage import rare_collections
from agentgym.rollout.tokenizer import read_template
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.learner import TitanLearner
from agentgym.trainer.reference import ReferenceModel
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights.store import WeightStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """All started, and at the same version of the weights. reference: None for a loss and an advantage without one."""

    gym: Gym
    player: EpisodePlayer
    generator: GeneratorService
    trainer: TrainerClient
    reference: ReferenceModel | None
    learner: TitanLearner


@dataclass(slots=True, kw_only=True)
class EngineRoom:
    """What the engines are made from. stack: everything that is started is closed with it, in reverse order.

    teacher: the folder of the advantage's teacher, if it has one. load: given the started trainer, loads what is
    continued and returns the version of its weights; None begins with the model, which is version 0.
    """

    recipe: Recipe
    folder: RunFolder
    reporter: Reporter
    gym: Gym
    stack: AsyncExitStack
    model_path: Path
    teacher: Path | None = None
    keep_logprobs: bool = False
    load: Callable[[TrainerClient], Awaitable[int]] | None = None

    async def start(self) -> Engines:
        recipe, stack = self.recipe, self.stack
        stack.enter_context(rare_collections())
        await stack.enter_async_context(watched(self.gym.activity))
        logs = self.folder.path / "logs"
        runtime = Runtime(log_dir=logs, launcher=recipe.launcher, patience_s=recipe.patience_s)
        await stack.enter_async_context(runtime)
        store = await recipe.weights.open(self.folder.name, runtime=runtime)
        stack.push_async_callback(store.close)
        with self.gym.activity.doing("start"):
            return await self._start(runtime, store)

    async def _start(self, runtime: Runtime, store: WeightStore) -> Engines:
        """Trainer, generators and reference start at the same time, then all hold the same version."""
        recipe, stack = self.recipe, self.stack
        names = f"{recipe.generator.replicas} generator replicas and {recipe.trainer.procs} trainer process(es)"
        self.reporter.phase(f"starting {names}")
        generator = GeneratorService(
            config=recipe.generator,
            store=store,
            model_path=str(self.model_path),
            runtime=runtime,
            peer_gpus=recipe.trainer.gpus if recipe.weights.store.gpu_memory else (),
        )
        setup = self._setup()
        trainer = TrainerClient(setup, store=store, runtime=runtime)
        reference = ReferenceModel(setup, runtime=runtime) if recipe.needs_reference else None
        credit = make_credit(recipe, setup, self.teacher, runtime)
        async with asyncio.TaskGroup() as starting:
            for service in (generator, trainer, reference, credit.teacher):
                if service is not None:
                    stack.push_async_callback(service.close)
                    starting.create_task(service.start())
        version = 0 if self.load is None else await self.load(trainer)
        await trainer.call(TitanTrainer.push_weights, version)
        await generator.update_weights(version)
        learner = TitanLearner(
            trainer=trainer,
            reference=reference,
            activity=self.gym.activity,
            credit=credit,
            keep_logprobs=self.keep_logprobs,
            branch_weights=recipe.rollout.branch_weights,
        )
        return Engines(
            gym=self.gym,
            player=self.gym.player(generator),
            generator=generator,
            trainer=trainer,
            reference=reference,
            learner=learner,
        )

    def _setup(self) -> TrainerSetup:
        recipe = self.recipe
        return TrainerSetup(
            model_path=str(self.model_path),
            trainer=recipe.trainer,
            optimizer=recipe.optimizer,
            loss=recipe.loss,
            total_steps=recipe.loop.steps,
            folder=str(self.folder.path / "trainer"),
            temperature=recipe.rollout.temperature,
            publish_dtype=recipe.generator.dtype,
            chat_template=read_template(recipe.model.chat_template),
            keep_logprobs=self.keep_logprobs,
            critic=recipe.advantage.needs_critic,
        )
