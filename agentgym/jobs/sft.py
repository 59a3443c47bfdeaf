"""Supervised fine-tuning: collect demonstrations, train on them in the run's folder, measure before and after."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.hooks import PluginRegistry
from agentgym.jobs.collecting import Lessons, collect, load_lessons
from agentgym.jobs.ending import TrainResult, checkpoint_name, compare_ends
from agentgym.jobs.evaluate import evaluate
from agentgym.jobs.hosts import runtime_of
from agentgym.jobs.places import settle_places
from agentgym.jobs.resume import resumed_state, undo_later_steps
from agentgym.jobs.sft_config import SftRecipe
from agentgym.jobs.state import RunState
from agentgym.jobs.watchdog import watched
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.recipe import ModelConfig
from agentgym.rl.demonstrations import Written
from agentgym.rl.loop import Position
from agentgym.rollout.activity import Activity
from agentgym.rollout.tokenizer import read_template
from agentgym.runs.checkpoints import prune, save_position
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.sinks import MetricSink
from agentgym.trainer.actor import TitanTrainer
from agentgym.trainer.journal import Journal
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Json


async def sft(
    recipe: SftRecipe,
    folder: RunFolder,
    reporter: Reporter,
    *,
    resume: bool = False,
    from_step: int | None = None,
    registry: PluginRegistry | None = None,
    notice: asyncio.Event | None = None,
) -> TrainResult:
    """Train to the last step; with an environment the first and the last weights play the same held-out tasks.

    from_step: where to resume; the newest whole checkpoint otherwise. notice: once it is set, the run saves after its
    step and ends. A resumed run goes on with the conversations
    that its folder holds. Raises UserError before anything is trained for what the user must fix; InfraError for
    what broke.
    """
    found = registry or PluginRegistry.discover(recipe.plugins.disabled)
    model_path = resolve_model(recipe.model.path, folder.path, random_weights=recipe.model.random_weights)
    recipe = settle_places(recipe, read_architecture(model_path), reporter.note)
    lora = recipe.trainer.lora
    state = resumed_state(folder, model_path, from_step, reporter.note, lora) if resume else RunState()
    lessons = load_lessons(folder) if resume else await collect(recipe, folder, model_path, found, reporter)
    job = SftJob(
        recipe=recipe,
        folder=folder,
        reporter=reporter,
        registry=found,
        model_path=model_path,
        state=state,
        lessons=lessons,
        notice=notice or asyncio.Event(),
    )
    return await job.run()


@dataclass(slots=True, kw_only=True)
class SftJob:
    """One run. model_path: of the weights that it began with."""

    recipe: SftRecipe
    folder: RunFolder
    reporter: Reporter
    registry: PluginRegistry
    model_path: Path
    state: RunState
    lessons: Lessons
    notice: asyncio.Event
    trainer: TrainerKeeper = field(init=False)
    activity: Activity = field(default_factory=Activity)
    sinks: list[MetricSink] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Steps."""
        return self.recipe.sft.num_steps(len(self.lessons.trained))

    async def run(self) -> TrainResult:
        recipe, state = self.recipe, self.state
        done = state.position.step if state.position is not None else 0
        measured = self.folder.load_comparison().get("steps") == done and done > 0
        if done > self.total or (done == self.total and (measured or not self._plays)):
            raise UserError(
                f"{self.folder.path} is done: it is at step {done} of {self.total}; raise sft.epochs or sft.steps to "
                "continue"
            )
        self.reporter.note(self.lessons.summary(recipe.sft, self.total))
        if state.position is not None:
            undo_later_steps(self.folder, state)
        elif self._plays:
            state.first_eval = await self._evaluate(recipe.model, 0)
        if trained := done < self.total:
            done = await self._train()
        if done < self.total:
            return TrainResult(
                run_dir=self.folder.path,
                steps=done,
                first=state.first_eval,
                last=None,
                difference=None,
                stopped=f"preempted; saved after step {done}",
            )
        if not self._plays:
            return TrainResult(run_dir=self.folder.path, steps=self.total, first=None, last=None, difference=None)
        model = replace(recipe.model, path=str(self.folder.checkpoint_dir(self.total)), random_weights=False)
        last = await self._evaluate(model, self.total, resume=not trained)
        return compare_ends(self.folder, self.reporter, self.total, state.first_eval, last)

    @property
    def _plays(self) -> bool:
        return bool(self.recipe.env.name) and self.recipe.eval.at_end

    async def _evaluate(self, model: ModelConfig, step: int, *, resume: bool = False) -> EvalResult:
        return await evaluate(
            self.recipe.playing(model),
            self.folder,
            self.reporter,
            step=step,
            name=checkpoint_name(step),
            resume=resume,
            registry=self.registry,
        )

    async def _train(self) -> int:
        """The last step that was done, which is saved."""
        recipe = self.recipe
        async with AsyncExitStack() as stack:
            self._open_sinks(stack)
            await stack.enter_async_context(watched(self.activity))
            opening = runtime_of(recipe, self.folder.path, self.model_path, self.reporter.note)
            runtime = await stack.enter_async_context(opening)
            self.reporter.phase(f"starting {recipe.trainer.procs} trainer process(es)")
            self.trainer = TrainerKeeper(self._setup(), journal=Journal(self.folder.path / "journal"), runtime=runtime)
            self.trainer.journal.clear()
            stack.push_async_callback(self.trainer.close)
            with self.activity.doing("start"):
                await self.trainer.start()
                if self.state.position is not None:
                    step = self.state.position.step
                    await self.trainer.resume(step, self.folder.checkpoint_dir(step) / "trainer", until=step)
            if self.state.position is None:
                await self._save(0)
            assert self.state.position is not None
            first = self.state.position.step + 1
            self.reporter.phase(f"training {self.total - first + 1} steps")
            for step in range(first, self.total + 1):
                await self._step(step)
                if self.notice.is_set():
                    await self._save(step)
                    return step
        return self.total

    async def _step(self, step: int) -> None:
        config, began = self.recipe.sft, time.monotonic()
        samples = [one.sample() for one in batch(self.lessons.trained, step, config.batch_size, config.seed)]
        with self.activity.doing("train"):
            metrics = await self.trainer.train_step(samples)
        passed_s = time.monotonic() - began
        metrics |= self.trainer.metrics()
        metrics |= {
            "sft/loss": metrics["train/loss"],
            "sft/epoch": step * config.batch_size / len(self.lessons.trained),
            "sft/tokens_per_s": metrics["train/tokens"] / passed_s,
            "time/step_s": passed_s,
            "time/train_s": passed_s,
        }
        due = step == self.total or (config.checkpoint_every and step % config.checkpoint_every == 0)
        if due and self.lessons.held_out:
            metrics["sft/held_out_loss"] = await self._held_out_loss()
        self.folder.append_metrics(step, metrics)
        for sink in self.sinks:
            sink.log(step, metrics)
        self.reporter.step(step, self.total, metrics)
        if due:
            await self._save(step)

    async def _held_out_loss(self) -> float:
        """Nats per token that would be trained, over conversations that are not."""
        size, lost, count = self.recipe.sft.batch_size, 0.0, 0
        for start in range(0, len(self.lessons.held_out), size):
            some = self.lessons.held_out[start : start + size]
            with self.activity.doing("train"):
                logprobs = await self.trainer.call(TitanTrainer.logprobs, [one.sample() for one in some])
            for one, values in zip(some, logprobs, strict=True):
                lost -= sum(value for value, trained in zip(values, one.trained, strict=True) if trained)
                count += sum(one.trained)
        return lost / count

    async def _save(self, step: int) -> None:
        """A checkpoint gets its position once it is complete."""
        target = self.folder.checkpoint_dir(step)
        await self.trainer.call(TitanTrainer.save, str(target / "trainer"))
        await self.trainer.call(TitanTrainer.export_hf, str(target / "hf"))
        self.state.position = Position(step=step, next_group=step * self.recipe.sft.batch_size)
        save_position(self.folder, step, asdict(self.state.position))
        self.folder.save_state(self.state.to_mapping())
        self.trainer.saved(step, target / "trainer")
        prune(self.folder, self.recipe.sft.keep_checkpoints)

    def _setup(self) -> TrainerSetup:
        recipe = self.recipe
        return TrainerSetup(
            model_path=str(self.model_path),
            trainer=recipe.trainer,
            optimizer=recipe.optimizer,
            loss=recipe.loss,
            total_steps=self.total,
            folder=str(self.folder.path / "trainer"),
            chat_template=read_template(recipe.model.chat_template),
        )

    def _open_sinks(self, stack: AsyncExitStack) -> None:
        for name in self.recipe.logging.sinks:
            sink = self.registry.sink(name)()
            sink.open(str(self.folder.path), cast("dict[str, Json]", to_mapping(self.recipe)))
            self.sinks.append(sink)
            stack.callback(sink.close)


def batch(conversations: list[Written], step: int, size: int, seed: int) -> list[Written]:
    """Those of a step, from 1: every epoch has each conversation once, in an order that the seed and its number fix."""
    begin, count = (step - 1) * size, len(conversations)
    orders: dict[int, list[int]] = {}
    chosen = []
    for place in range(begin, begin + size):
        epoch, at = divmod(place, count)
        if epoch not in orders:
            orders[epoch] = random.Random(f"{seed}/{epoch}").sample(range(count), count)
        chosen.append(conversations[orders[epoch][at]])
    return chosen
