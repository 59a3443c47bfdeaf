"""Tensors that reference cycles hold are freed with the step, however rarely Python would look for them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import psutil
import pytest
import torch
from tiny_model import draw_samples

from agentgym.trainer import garbage as module
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.garbage import FIRST, Garbage


@pytest.fixture(autouse=True)
def python_never_looks() -> Iterator[None]:
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


class Knot:
    def __init__(self) -> None:
        self.itself, self.weights = self, torch.zeros(4)


def tied(held: list[Knot] | None = None) -> weakref.ref[torch.Tensor]:
    """Of a tensor that a cycle holds; held: keeps that alive."""
    knot = Knot()
    if held is not None:
        held.append(knot)
    return weakref.ref(knot.weights)


def test_a_cycle_is_freed_with_the_step_that_left_it() -> None:
    garbage = Garbage()
    for _ in range(FIRST + 4):
        tensor = tied()
        assert tensor() is not None
        garbage.after_step()
        assert tensor() is None


def test_a_cycle_that_outlived_its_step_is_freed_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", every := 10)
    garbage, held = Garbage(), list[Knot]()
    tensor = tied(held)
    for _ in range(FIRST):
        garbage.after_step()
    held.clear()  # after all that lived were set apart
    garbage.after_step()
    assert tensor() is not None
    for _ in range(every - FIRST - 2):
        garbage.after_step()
    assert tensor() is not None
    garbage.after_step()
    assert tensor() is None


def test_memory_between_blocks_that_are_used_is_given_back() -> None:
    garbage, process = Garbage(), psutil.Process()
    blocks = [torch.ones(25_000) for _ in range(1000)]  # 100 MB, each too small for a mapping of its own
    kept = blocks[::20]
    blocks.clear()
    before = process.memory_info().rss
    garbage.after_step()
    assert process.memory_info().rss < before - 50e6
    assert all(float(block.sum()) == 25_000 for block in kept)


async def test_the_trainer_collects_after_each_step(make_engine: Callable[..., TrainingEngine]) -> None:
    engine = make_engine()
    trainer = TrainerActor(engine._setup, None)
    trainer._built = engine
    tensor = tied()
    await TrainerActor.train_step.plain_method(trainer, draw_samples(4))
    assert tensor() is None
    await TrainerActor.forward_backward.plain_method(trainer, draw_samples(4))
    tensor = tied()
    await TrainerActor.optimizer_step.plain_method(trainer)
    assert tensor() is None, "in a loop that makes its steps of parts"
