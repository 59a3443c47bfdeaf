"""A run of supervised fine-tuning: its conversations, its trainer, and what its loop leaves in the run's folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.loops import sft
from agentgym.loops.async_rl import Position
from agentgym.rl.demonstrations import Written
from agentgym.rl.sft_config import SftConfig
from agentgym.rollout.activity import Activity
from agentgym.run.calls import Call
from agentgym.run.checkpoints import Checkpoints
from agentgym.run.collecting import FILE, Lessons, collect, load_lessons, load_messages
from agentgym.run.ending import TrainResult, checkpoint_name, compare_ends, measure_end
from agentgym.run.engines import start_trainer
from agentgym.run.evaluate import evaluate
from agentgym.run.forecast import is_probed, sft_forecast
from agentgym.run.resume import RunState, StartPoint, undo_later_steps
from agentgym.run.settle import Settled, at_checkpoint, settle_sampling
from agentgym.run.sinks import Sinks
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.sinks import StepEpisodes
from agentgym.trainer.actor import TrainerActor, TrainerStatus
from agentgym.trainer.keeper import TrainerKeeper
from agentgym.types import Group, Message, Sample


class DemonstrationCalls:
    """Conversations as tokens, of which only what the assistant says is trained. num_steps: as many as the recipe has.

    sample(step): the batch of a step, as `batch` gives it.
    """

    def __init__(self, lessons: Lessons, config: SftConfig) -> None:
        self.lessons, self._config = lessons, config
        self.num_steps = config.num_steps(len(lessons.trained))
        self.sample = Call(self._sample)

    @property
    def held_out(self) -> Sequence[Written]:
        return self.lessons.held_out

    def batch(self, step: int) -> list[Sample]:
        """The conversations of a step, from 1; every epoch has each once, in an order that the seed fixes."""
        config = self._config
        return [one.sample() for one in sft.batch(self.lessons.trained, step, config.batch_size, config.seed)]

    async def _sample(self, step: int) -> list[Sample]:
        return self.batch(step)

    def epochs(self, step: int) -> float:
        """Passed after a step."""
        return step * self._config.batch_size / len(self.lessons.trained)


class SftTrainerCalls:
    """The trainer, of samples. One that dies comes back, and the step is made again."""

    def __init__(self, checkpoints: Checkpoints, sinks: Sinks) -> None:
        self._sinks = sinks
        self._checkpoints, self._keeper, self._activity = checkpoints, checkpoints.trainer, checkpoints.activity
        self.train_step = Call(self._train_step)
        self.logprobs = Call(self._logprobs)
        self.get_status = Call(self._status)

    async def _train_step(self, samples: list[Sample]) -> dict[str, float]:
        """One optimizer step; returns metrics. A checkpoint that was written meanwhile counts after it."""
        await self._sinks.ready()
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
            return await self._keeper.call(TrainerActor.logprobs, samples, trained_only)

    async def _status(self) -> TrainerStatus:
        return await self._keeper.call(TrainerActor.get_status)


@dataclass(slots=True, kw_only=True)
class SftRun:
    """Implements `agentgym.loops.sft.Run`; also the services of a loop of one's own.

    resumed_at: the step of the checkpoint that it goes on from; None for a new run. done: steps that are trained.
    notice: once it is set, the run saves after its step and ends. sinks: open as long as the run is.
    """

    settled: Settled
    folder: RunFolder
    reporter: Reporter
    start: StartPoint
    dataset: DemonstrationCalls
    resumed_at: int | None
    done: int
    notice: asyncio.Event = field(default_factory=asyncio.Event)
    activity: Activity = field(default_factory=Activity)
    sinks: Sinks = field(default_factory=Sinks)
    _checkpoints: Checkpoints | None = None
    _messages: Sequence[Sequence[Message]] = ()

    @classmethod
    async def begin(
        cls,
        settled: Settled,
        folder: RunFolder,
        reporter: Reporter,
        start: StartPoint,
        notice: asyncio.Event | None = None,
    ) -> SftRun:
        """Find the demonstrations, which a resumed run has in its folder; nothing is left running.

        folder: of the run, open for writing. Raises UserError for what the user must fix.
        """
        config = settled.recipe.fine_tuning
        known = start.checkpoint is not None or (folder.path / FILE).is_file()
        lessons = load_lessons(folder) if known else await collect(settled, folder, reporter)
        dataset = DemonstrationCalls(lessons, config)
        if start.position.step < dataset.num_steps:
            reporter.note(lessons.summary(config, dataset.num_steps))
        return cls(
            settled=settled,
            folder=folder,
            reporter=reporter,
            start=start,
            dataset=dataset,
            resumed_at=start.checkpoint,
            done=start.position.step,
            notice=notice or asyncio.Event(),
        )

    @property
    def config(self) -> SftConfig:
        return self.settled.recipe.fine_tuning

    @property
    def state(self) -> RunState:
        return self.start.state

    @property
    def leaving(self) -> bool:
        return self.notice.is_set()

    async def measure_first(self) -> None:
        if self.settled.recipe.evaluates and self.resumed_at is None:
            began = time.monotonic()
            await self.evaluate(0)
            self.state.first_eval_s = time.monotonic() - began

    @asynccontextmanager
    async def training(self) -> AsyncIterator[SftTrainerCalls]:
        """The trainer, which starts here and ends with the block: evaluations before and after have the machine.

        It begins where the state is, or with the model, which is then saved as step 0.
        """
        steps = self.dataset.num_steps
        if self.resumed_at is not None:
            undo_later_steps(self.folder, self.state)
        async with AsyncExitStack() as stack:
            if self.sinks.want_episodes:
                self._messages = await asyncio.to_thread(load_messages, self.folder)
            trainer = await start_trainer(
                self.settled, self.folder, self.reporter, self.start, stack, activity=self.activity, steps=steps
            )
            checkpoints = self._checkpoints = Checkpoints(
                folder=self.folder,
                state=self.state,
                trainer=trainer,
                activity=self.activity,
                keep=self.config.keep_checkpoints,
                note=self.reporter.note,
            )
            if self.resumed_at is None:
                await self.save(0)
            await self._say_forecast(trainer, steps - self.done)
            self.reporter.phase(f"training {steps - self.done} steps")
            try:
                yield SftTrainerCalls(checkpoints, self.sinks)
                await checkpoints.finish()
            finally:
                self._checkpoints = None

    async def _say_forecast(self, trainer: TrainerKeeper, steps: int) -> None:
        if not is_probed(self.settled.recipe):
            return
        trained = self.dataset.lessons.trained
        tokens = sum(map(len, trained)) / len(trained)
        every, last = self.config.checkpoint_every, self.dataset.num_steps
        checks = 1 + ((last - 1) // every - self.done // every if every else 0)
        forecast = await sft_forecast(
            self.settled.recipe,
            lambda samples: trainer.call(TrainerActor.logprobs, samples, True),
            tokens,
            steps,
            self.state.first_eval_s,
            checks * sum(map(len, self.dataset.held_out)),
        )
        self.reporter.note(str(forecast))

    async def held_out_loss(self) -> float:
        """Nats per token that would be trained, over conversations that are not."""
        trainer = SftTrainerCalls(self._started(), self.sinks)
        return await sft.held_out_loss(trainer, self.dataset.held_out, self.config.batch_size)

    async def evaluate(self, step: int) -> EvalResult:
        """Evaluates the weights that `save` kept after `step` on held-out tasks of the recipe's environment."""
        recipe, note = self.settled.recipe, self.reporter.note
        model = at_checkpoint(recipe, self.folder.checkpoint_dir(step)) if step else recipe
        settled = settle_sampling(model, self.folder.path, note, self.settled.registry, trained=step > 0)
        result = await evaluate(
            settled, self.folder, self.reporter, step=step, name=checkpoint_name(step), sinks=self.sinks
        )
        if not step:
            self.state.first_eval = result
        return result

    def record(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Records metrics in the run's folder, in `logging.sinks` (by a thread) and on the terminal; returns them."""
        found = {**metrics, "sft/epoch": self.dataset.epochs(step)}
        self.folder.append_metrics(step, found)
        self.sinks.log_episodes(lambda: StepEpisodes(step=step, source="sft", groups=self._imitated(step)))
        self.sinks.log(step, found)
        self.reporter.step(step, self.dataset.num_steps, found, self.state.first_eval_s)
        self.done = step
        return found

    def _imitated(self, step: int) -> list[Group]:
        trained, config = self.dataset.lessons.trained, self.config
        chosen = sft.batch([*zip(trained, self._messages, strict=True)], step, config.batch_size, config.seed)
        begin = (step - 1) * config.batch_size
        episodes = [written.episode(messages) for written, messages in chosen]
        return [
            Group(group_id=begin + n, task=one.task, start_version=step - 1, episodes=[one], advantages=[None])
            for n, one in enumerate(episodes)
        ]

    async def save(self, step: int, *, wait: bool = True) -> Path:
        """A checkpoint that `agentgym sft --resume` goes on from, once it has its position. Returns its folder.

        wait: until it is whole. Else it is copied, and written while the next steps go on: it is whole after one of
        them, at the next save or at the end of `training`.
        """
        checkpoints = self._started()
        position = Position(step=step, next_group=step * self.config.batch_size)
        await (checkpoints.save if wait else checkpoints.begin)(position)
        return self.folder.checkpoint_dir(step)

    async def end(self) -> TrainResult:
        steps, first = self.dataset.num_steps, self.state.first_eval
        if self.resumed_at is not None and self.resumed_at >= steps:
            return await measure_end(self.settled, self.folder, self.reporter, self.state, steps)
        if self.done == steps and self.settled.recipe.evaluates:
            return compare_ends(self.folder, self.reporter, steps, first, await self.evaluate(steps))
        stopped = f"preempted; saved after step {self.done}" if self.done < steps else ""
        return TrainResult(
            run_dir=self.folder.path, steps=self.done, first=first, last=None, difference=None, stopped=stopped
        )

    def _started(self) -> Checkpoints:
        if self._checkpoints is None:
            raise UserError("the trainer is not running: call this inside `async with run.training()`")
        return self._checkpoints
