"""The whole of supervised fine-tuning: imitate conversations, and play held-out tasks before and after.

`train` is the loop of `agentgym sft` and of apps/sft/main.py: copy this file to change it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeVar

from agentgym.rl.demonstrations import Written
from agentgym.rl.sft_config import SftConfig
from agentgym.types import Sample

T = TypeVar("T")
Result_co = TypeVar("Result_co", covariant=True)


class Dataset(Protocol):
    """num_steps: of the whole run."""

    @property
    def num_steps(self) -> int: ...
    @property
    def held_out(self) -> Sequence[Written]:
        """Conversations that are not trained."""

    def batch(self, step: int) -> list[Sample]:
        """The conversations of a step, from 1."""


class Trainer(Protocol):
    async def train_step(self, samples: list[Sample]) -> dict[str, float]:
        """One optimizer step; returns metrics."""

    async def logprobs(self, samples: list[Sample], trained_only: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of the samples' tokens, 0 for what is not computed."""


class Run(Protocol[Result_co]):
    """What `train` needs of a run that is open; `agentgym.run.sft_run.SftRun` is one.

    done: steps. leaving: whether the run shall save and end after this step.
    """

    @property
    def config(self) -> SftConfig: ...
    @property
    def dataset(self) -> Dataset: ...
    @property
    def done(self) -> int: ...
    @property
    def leaving(self) -> bool: ...

    async def measure_first(self) -> None:
        """Evaluate the weights before the first step, once in a run."""

    def training(self) -> AbstractAsyncContextManager[Trainer]:
        """Start the trainer, which ends with the block: evaluations before and after have the machine."""

    def record(self, step: int, metrics: dict[str, float]) -> object:
        """Keep and show the metrics of a step, which is done now."""

    async def save(self, step: int, *, wait: bool) -> object:
        """Make a checkpoint. wait: until it is whole, and not only copied."""

    async def end(self) -> Result_co:
        """Evaluate the last weights, if all steps are done and the run measures its ends."""


async def train(run: Run[Result_co]) -> Result_co:
    """Train from where the run is to the last step; save, and measure what is held out, as its config says."""
    config, dataset, last = run.config, run.dataset, run.dataset.num_steps
    await run.measure_first()
    if run.done < last:
        async with run.training() as trainer:
            for step in range(run.done + 1, last + 1):
                metrics = await trainer.train_step(dataset.batch(step))
                due = step == last or (config.checkpoint_every > 0 and step % config.checkpoint_every == 0)
                if due and dataset.held_out:
                    metrics["sft/held_out_loss"] = await held_out_loss(trainer, dataset.held_out, config.batch_size)
                run.record(step, metrics)
                if due or run.leaving:
                    ends = step == last or run.leaving
                    await run.save(step, wait=ends or not config.checkpoint_in_background)
                if run.leaving:
                    break
    return await run.end()


def batch(conversations: Sequence[T], step: int, size: int, seed: int) -> list[T]:
    """The conversations of a step, from 1: every epoch has each once, in an order that the seed and the epoch fix."""
    begin, count = (step - 1) * size, len(conversations)
    orders: dict[int, list[int]] = {}
    chosen = []
    for place in range(begin, begin + size):
        epoch, at = divmod(place, count)
        if epoch not in orders:
            orders[epoch] = random.Random(f"{seed}/{epoch}").sample(range(count), count)
        chosen.append(conversations[orders[epoch][at]])
    return chosen


async def held_out_loss(trainer: Trainer, held_out: Sequence[Written], size: int) -> float:
    """Nats per token that would be trained, `size` conversations at a time."""
    lost, count = 0.0, 0
    for start in range(0, len(held_out), size):
        some = held_out[start : start + size]
        logprobs = await trainer.logprobs([one.sample() for one in some], trained_only=True)
        for one, values in zip(some, logprobs, strict=True):
            lost -= sum(value for value, trained in zip(values, one.trained, strict=True) if trained)
            count += sum(one.trained)
    return lost / count
