"""The services of supervised fine-tuning: batches of demonstrations, a trainer, held-out loss, a measure in a game.

`agentgym sft` is a loop over them, and so is apps/sft/main.py.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.hooks import PluginRegistry
from agentgym.loops.async_rl import Position
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.rl.demonstrations import Written
from agentgym.rl.sft_config import SftConfig
from agentgym.rollout.activity import Activity
from agentgym.run.background import Sinks
from agentgym.run.calls import Call
from agentgym.run.checkpoints import Checkpoints
from agentgym.run.collecting import Lessons, collect
from agentgym.run.ending import checkpoint_name
from agentgym.run.engines import runtime_of
from agentgym.run.evaluate import evaluate
from agentgym.run.places import settle_places
from agentgym.run.resume import RunState
from agentgym.run.watchdog import watched
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.text.tokenizer import read_template
from agentgym.trainer.actor import TitanTrainer, TrainerStatus
from agentgym.trainer.journal import Journal
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample


class DemonstrationCalls:
    """Conversations as tokens, of which only what the assistant says is trained. num_steps: as many as the recipe has.

    sample(step): the batch of a step, from 1; every epoch has each conversation once, in an order of the seed's.
    """

    def __init__(self, lessons: Lessons, config: SftConfig) -> None:
        self.lessons, self._config = lessons, config
        self.num_steps = config.num_steps(len(lessons.trained))
        self.sample = Call(self._sample)

    async def _sample(self, step: int) -> list[Sample]:
        config = self._config
        return [one.sample() for one in batch(self.lessons.trained, step, config.batch_size, config.seed)]

    def epochs(self, step: int) -> float:
        """Passed after a step."""
        return step * self._config.batch_size / len(self.lessons.trained)


class SftTrainerCalls:
    """The trainer, of samples. One that dies comes back, and the step is made again."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints, self._keeper, self._activity = checkpoints, checkpoints.trainer, checkpoints.activity
        self.train_step = Call(self._train_step)
        self.logprobs = Call(self._logprobs)
        self.get_status = Call(self._status)

    async def _train_step(self, samples: list[Sample]) -> dict[str, float]:
        """One optimizer step; returns metrics. A checkpoint that was written meanwhile counts after it."""
        began = time.monotonic()
        with self._activity.doing("train"):
            metrics = await self._keeper.train_step(samples)
        passed_s = time.monotonic() - began
        await self._checkpoints.settle()
        return {
            **metrics,
            **self._keeper.metrics(),
            **self._checkpoints.metrics(),
            "sft/loss": metrics["train/loss"],
            "sft/tokens_per_s": metrics["train/tokens"] / passed_s,
            "time/step_s": passed_s,
            "time/train_s": passed_s,
        }

    async def _logprobs(self, samples: list[Sample], trained_only: bool = False) -> list[tuple[float, ...]]:
        with self._activity.doing("train"):
            return await self._keeper.call(TitanTrainer.logprobs, samples, trained_only)

    async def _status(self) -> TrainerStatus:
        return await self._keeper.call(TitanTrainer.get_status)


@dataclass(slots=True, kw_only=True)
class SftServices:
    """What a loop of supervised fine-tuning is made of. model_path: of the weights that it began with.

    state: what a resumed run goes on from, see `save`.
    """

    recipe: Recipe
    folder: RunFolder
    reporter: Reporter
    registry: PluginRegistry
    model_path: Path
    dataset: DemonstrationCalls
    state: RunState = field(default_factory=RunState)
    activity: Activity = field(default_factory=Activity)
    _checkpoints: Checkpoints | None = None
    _sinks: Sinks = field(default_factory=Sinks)

    @asynccontextmanager
    async def training(self) -> AsyncIterator[SftTrainerCalls]:
        """The trainer, which starts here and ends with the block: evaluations before and after have the machine.

        It begins where the state is, or with the model, which is then saved as step 0.
        """
        recipe, position = self.recipe, self.state.position
        async with AsyncExitStack() as stack:
            self._sinks = await stack.enter_async_context(
                Sinks.opened(recipe.logging, to_mapping(recipe), self.folder.path, self.registry)
            )
            await stack.enter_async_context(watched(self.activity))
            starting = runtime_of(recipe, self.folder.path, self.model_path, self.reporter.note)
            runtime = await stack.enter_async_context(starting)
            self.reporter.phase(f"starting {recipe.trainer.procs} trainer process(es)")
            keeper = TrainerKeeper(self._setup(), journal=Journal(self.folder.path / "journal"), runtime=runtime)
            keeper.journal.clear()
            stack.push_async_callback(keeper.close)
            with self.activity.doing("start"):
                await keeper.start()
                if position is not None:
                    saved = self.folder.checkpoint_dir(position.step) / "trainer"
                    await keeper.resume(position.step, saved, until=position.step)
            checkpoints = self._checkpoints = Checkpoints(
                folder=self.folder,
                state=self.state,
                trainer=keeper,
                activity=self.activity,
                keep=recipe.fine_tuning.keep_checkpoints,
                note=self.reporter.note,
            )
            if position is None:
                await self.save(0)
            done = position.step if position is not None else 0
            self.reporter.phase(f"training {self.dataset.num_steps - done} steps")
            try:
                yield SftTrainerCalls(checkpoints)
                await checkpoints.finish()
            finally:
                self._checkpoints, self._sinks = None, Sinks()

    async def held_out_loss(self) -> float:
        """Nats per token that would be trained, over conversations that are not."""
        held_out, size = self.dataset.lessons.held_out, self.recipe.fine_tuning.batch_size
        trainer, lost, count = SftTrainerCalls(self._started()), 0.0, 0
        for start in range(0, len(held_out), size):
            some = held_out[start : start + size]
            logprobs = await trainer.logprobs([one.sample() for one in some], trained_only=True)
            for one, values in zip(some, logprobs, strict=True):
                lost -= sum(value for value, trained in zip(values, one.trained, strict=True) if trained)
                count += sum(one.trained)
        return lost / count

    async def evaluate(self, step: int, *, resume: bool = False) -> EvalResult:
        """Of the weights after `step`, which `save` kept, on held-out tasks of the recipe's environment.

        resume: an evaluation that was interrupted goes on.
        """
        model = self.recipe.model
        if step:
            model = replace(model, path=str(self.folder.checkpoint_dir(step)), random_weights=False)
        result = await evaluate(
            replace(self.recipe, model=model),
            self.folder,
            self.reporter,
            step=step,
            name=checkpoint_name(step),
            resume=resume,
            registry=self.registry,
        )
        if not step:
            self.state.first_eval = result
        return result

    def record(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Into the run's folder, to `logging.sinks` in a thread while `training` goes on, and shown. Returns it."""
        found = {**metrics, "sft/epoch": self.dataset.epochs(step)}
        self.folder.append_metrics(step, found)
        self._sinks.log(step, found)
        self.reporter.step(step, self.dataset.num_steps, found)
        return found

    async def save(self, step: int, *, wait: bool = True) -> Path:
        """A checkpoint that `agentgym sft --resume` goes on from, once it has its position. Returns its folder.

        wait: until it is whole. Else it is copied, and written while the next steps go on: it is whole after one of
        them, at the next save or at the end of `training`.
        """
        checkpoints = self._started()
        position = Position(step=step, next_group=step * self.recipe.fine_tuning.batch_size)
        await (checkpoints.save if wait else checkpoints.begin)(position)
        return self.folder.checkpoint_dir(step)

    def _started(self) -> Checkpoints:
        if self._checkpoints is None:
            raise UserError("the trainer is not running: call this inside `async with services.training()`")
        return self._checkpoints

    def _setup(self) -> TrainerSetup:
        recipe = self.recipe
        return TrainerSetup(
            model_path=str(self.model_path),
            trainer=recipe.trainer,
            optimizer=recipe.optimizer,
            loss=recipe.loss,
            total_steps=self.dataset.num_steps,
            folder=str(self.folder.path / "trainer"),
            chat_template=read_template(recipe.model.chat_template),
        )


async def open_sft(recipe: Recipe, folder: RunFolder, reporter: Reporter, registry: PluginRegistry) -> SftServices:
    """Find the demonstrations; nothing is left running. folder: of the run, open for writing.

    Raises UserError for what the user must fix.
    """
    model_path = resolve_model(recipe.model.path, folder.path, random_weights=recipe.model.random_weights)
    recipe = settle_places(recipe, read_architecture(model_path), reporter.note)
    lessons = await collect(recipe, folder, model_path, registry, reporter)
    dataset = DemonstrationCalls(lessons, recipe.fine_tuning)
    reporter.note(lessons.summary(recipe.fine_tuning, dataset.num_steps))
    return SftServices(
        recipe=recipe, folder=folder, reporter=reporter, registry=registry, model_path=model_path, dataset=dataset
    )


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
