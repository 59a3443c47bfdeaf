"""The learning rate's course: torchtitan's own where nothing changes, and no jump where loop.steps does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agentgym.errors import UserError
from agentgym.trainer import titan
from agentgym.trainer.config import OptimizerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.schedule import RateSchedule
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]
STEEPEST = 1 / 4  # of the schedules below, from one step to the next


def schedule(total: int, *, warmup: int = 4, decay: float = 0.5) -> RateSchedule:
    return RateSchedule.of(OptimizerConfig(warmup_steps=warmup, decay_ratio=decay), total)


@pytest.mark.parametrize("total", [1, 3, 10, 21])
@pytest.mark.parametrize("warmup", [0, 1, 4, 30])
@pytest.mark.parametrize("decay", [0.0, 0.3, 1.0])
def test_a_run_that_is_not_changed_follows_torchtitans_schedule(total: int, warmup: int, decay: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = titan.LRSchedulersContainer.Config(warmup_steps=warmup, decay_ratio=decay).build(
        optimizers=[optimizer], training_steps=total
    )
    expected = [theirs.schedulers[0].lr_lambdas[0](step) for step in range(total)]
    ours = schedule(total, warmup=warmup, decay=decay)
    assert [ours.factor(step) for step in range(total)] == pytest.approx(expected)


@pytest.mark.parametrize("total", [6, 12, 20])
@pytest.mark.parametrize(("changed", "decay"), [(30, 0.5), (40, 0.0), (13, 0.5), (30, 1.0)])
def test_a_changed_number_of_steps_never_moves_the_rate_by_more_than_a_step_of_a_slope(
    total: int, changed: int, decay: float
) -> None:
    for at in range(1, min(total, changed) - 1):
        before, after = schedule(total), schedule(changed, decay=decay).taking_over(schedule(total), at)
        assert after.factor(at) == pytest.approx(before.factor(at))
        rates = [before.factor(step) for step in range(at)] + [after.factor(step) for step in range(at, changed)]
        slopes = [abs(b - a) for a, b in itertools.pairwise(rates)]
        assert max(slopes) <= max(STEEPEST, 1 / (changed - at)) + 1e-9
        assert min(rates) > 0 and (rates[-1] < 1 or decay == 0)


def test_a_resume_that_changes_nothing_keeps_an_earlier_change() -> None:
    once = schedule(30).taking_over(schedule(10), 7)
    assert schedule(30).taking_over(once, 9) == once
    assert replace(once, from_step=0, from_factor=0.25) == schedule(30)


def test_a_rate_that_has_fallen_to_zero_can_not_go_on() -> None:
    with pytest.raises(UserError, match="fell to 0 at its step 10, so it can't learn from step 10 on"):
        schedule(20).taking_over(schedule(10), 10)
    assert schedule(20, decay=0.0).taking_over(schedule(10, decay=0.0), 10).factor(19) == 1.0


def test_a_resumed_run_with_more_steps_goes_on_at_its_rate(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path
) -> None:
    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=2, decay_ratio=0.5)
    first = make_engine(optimizer=optimizer, total_steps=6)
    for _ in range(5):
        last = first.train_step(samples)["train/lr"]
    first.save(str(tmp_path / "step-5"))
    next_rate = first.train_step(samples)["train/lr"]
    second = make_engine(optimizer=optimizer, total_steps=12)
    second.load(str(tmp_path / "step-5"))
    rates = [second.train_step(samples)["train/lr"] for _ in range(7)]
    assert last > next_rate and rates[:2] == pytest.approx([next_rate] * 2)
    assert rates[-1] == pytest.approx(next_rate / 6)
