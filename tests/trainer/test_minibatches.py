"""Several updates by one batch, and the old policy that they are bounded by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from agentgym.rl.losses.corrected import Decoupled
from agentgym.rl.losses.ppo_clip import PpoClip
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.minibatches import combined, minibatches
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


def test_every_epoch_has_every_sample_once_in_an_order_that_the_seed_and_the_step_decide(samples: list[Sample]) -> None:
    config = TrainerConfig(minibatches=4, epochs=3)
    parts = list(minibatches(samples, config, step=5))
    assert [len(part) for part in parts] == [3, 2, 2, 2] * 3
    names = [sample.sample_id for part in parts for sample in part]
    epochs = [names[first : first + 9] for first in (0, 9, 18)]
    assert all(sorted(epoch) == sorted(sample.sample_id for sample in samples) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert parts == list(minibatches(samples, config, step=5)) != list(minibatches(samples, config, step=6))
    assert [len(part) for part in minibatches(samples[:2], config, step=0)] == [1, 1] * 3


def test_metrics_of_updates_are_combined_as_the_loss_declares() -> None:
    updates = [
        {"train/trained_tokens": 10.0, "a": 1.0, "b": 1.0, "c": 1.0},
        {"train/trained_tokens": 30.0, "a": 2.0, "b": 2.0},
    ]
    found = combined(updates, {"a": "mean", "b": "max", "c": "sum"})
    assert found == {"train/updates": 2.0, "train/trained_tokens": 40.0, "a": 1.75, "b": 2.0, "c": 1.0}


def test_the_old_policy_of_every_update_is_that_before_the_first_one(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    """Two epochs of the whole batch equal two steps by hand on samples with the log-probabilities of the start."""
    engine = make_engine(loss=Decoupled(), epochs=2)
    by_hand = make_engine(loss=Decoupled())
    metrics = engine.train_step(samples)
    old = by_hand.logprobs(samples)
    with_old = [replace(sample, old_logprobs=values) for sample, values in zip(samples, old, strict=True)]
    for part in minibatches(with_old, TrainerConfig(epochs=2), step=0):
        by_hand._update(part)
    theirs = dict(by_hand.hf_weights())
    for name, weight in engine.hf_weights():
        assert torch.equal(weight, theirs[name]), name
    assert metrics["train/updates"] == 2.0
    assert metrics["train/trained_tokens"] == 2 * sum(sample.num_trained_tokens for sample in samples)


def test_a_step_is_one_of_the_schedule_however_many_updates_it_makes(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    engine = make_engine(minibatches=3, epochs=2, keep_logprobs=True)
    before = engine.logprobs(samples)
    rates = [engine.train_step(samples)["train/lr"] for _ in range(2)]
    assert engine.step == 2
    assert rates == pytest.approx([1e-2 / 5, 2e-2 / 5])  # the warm-up of five steps
    fresh = make_engine(minibatches=3, epochs=2, keep_logprobs=True)
    fresh.train_step(samples)
    expected = [p for s, row in zip(samples, before, strict=True) for p, m in zip(row, s.loss_mask, strict=True) if m]
    assert list(fresh.trained_logprobs()) == pytest.approx(expected, abs=1e-6)  # before the weights changed


def test_the_clip_bounds_what_many_epochs_do_to_the_ratio(make_engine: MakeEngine, samples: list[Sample]) -> None:
    """Where the ratio is against the trainer's old policy, so that stale samples are not outside from the start."""
    moved = []
    for clip in (0.05, 1e9):
        engine = make_engine(loss=PpoClip(old="trainer", clip_low=min(clip, 0.99), clip_high=clip), epochs=8, lr=2e-3)
        before = engine.logprobs(samples)
        metrics = engine.train_step(samples)
        after = engine.logprobs(samples)
        moved.append(sum(abs(b - a) for x, y in zip(before, after, strict=True) for a, b in zip(x, y, strict=True)))
        assert (metrics["train/clip_share"] > 0.1) == (clip < 1)
    assert moved[0] < 0.8 * moved[1]
