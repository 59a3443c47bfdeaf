"""The loop of supervised fine-tuning, over a run that records what is asked of it."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from agentgym.loops.sft import held_out_loss, train
from agentgym.rl.demonstrations import Written
from agentgym.rl.sft_config import SftConfig
from agentgym.types import Sample


def conversation(name: str, trained: bytes) -> Written:
    return Written(name=name, token_ids=array("i", range(len(trained))), trained=trained)


HELD_OUT = [conversation("a", b"\0\1\1"), conversation("b", b"\0\0\1"), conversation("c", b"\0\1")]


@dataclass
class Trainer:
    """Token t of a sample has the log-probability -(t + 1)."""

    asked: list[int] = field(default_factory=list)

    async def train_step(self, samples: list[Sample]) -> dict[str, float]:
        return {"train/loss": float(samples[0].sample_id)}

    async def logprobs(self, samples: list[Sample], trained_only: bool = False) -> list[tuple[float, ...]]:
        assert trained_only
        self.asked.append(len(samples))
        return [tuple(-(t + 1.0) for t in one.token_ids) for one in samples]


@dataclass
class Dataset:
    num_steps: int
    held_out: list[Written]

    def batch(self, step: int) -> list[Sample]:
        return [conversation(str(step), b"\0\1").sample()]


@dataclass
class Run:
    """leaves_after: the step after which the run is asked to end."""

    config: SftConfig
    dataset: Dataset
    done: int = 0
    leaves_after: int = 99
    events: list[str] = field(default_factory=list)

    @property
    def leaving(self) -> bool:
        return self.done >= self.leaves_after

    async def measure_first(self) -> None:
        self.events.append("measure")

    @asynccontextmanager
    async def training(self) -> AsyncIterator[Trainer]:
        self.events.append("start")
        yield Trainer()
        self.events.append("stop")

    def record(self, step: int, metrics: dict[str, float]) -> None:
        assert metrics["train/loss"] == step
        self.done = step
        self.events.append(f"{step}{' held out' if 'sft/held_out_loss' in metrics else ''}")

    async def save(self, step: int, *, wait: bool) -> None:
        self.events.append(f"save {step}{' waits' if wait else ''}")

    async def end(self) -> str:
        self.events.append("end")
        return f"done {self.done}"


@pytest.mark.parametrize(
    ("config", "given", "events"),
    [
        ({"checkpoint_every": 2}, {}, "1, 2 held out, save 2, 3, 4 held out, save 4, 5 held out, save 5 waits"),
        ({"checkpoint_every": 0}, {}, "1, 2, 3, 4, 5 held out, save 5 waits"),
        ({"checkpoint_every": 3, "checkpoint_in_background": False}, {"done": 2},
         "3 held out, save 3 waits, 4, 5 held out, save 5 waits"),
        ({"checkpoint_every": 2}, {"leaves_after": 3}, "1, 2 held out, save 2, 3, save 3 waits"),
        ({"checkpoint_every": 2}, {"leaves_after": 2}, "1, 2 held out, save 2 waits"),
    ],
)  # fmt: skip
async def test_checkpoints_and_what_is_held_out_are_due_together(
    config: dict[str, int], given: dict[str, int], events: str
) -> None:
    run = Run(config=SftConfig(**config), dataset=Dataset(5, HELD_OUT), **given)
    result = await train(run)
    assert run.events == ["measure", "start", *events.split(", "), "stop", "end"]
    assert result == f"done {run.done}"


async def test_a_run_with_all_its_steps_starts_no_trainer() -> None:
    run = Run(config=SftConfig(), dataset=Dataset(5, []), done=5)
    await train(run)
    assert run.events == ["measure", "end"]


async def test_nothing_is_measured_where_nothing_is_held_out() -> None:
    run = Run(config=SftConfig(checkpoint_every=1), dataset=Dataset(1, []))
    await train(run)
    assert "1" in run.events


async def test_the_held_out_loss_is_a_mean_over_trained_tokens_not_over_conversations() -> None:
    trainer = Trainer()
    assert await held_out_loss(trainer, HELD_OUT, 2) == (2 + 3 + 3 + 2) / 4
    assert trainer.asked == [2, 1]
