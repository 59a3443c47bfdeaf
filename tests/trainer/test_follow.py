"""Weights that follow those of another engine: what a reference model does that is reset, or is a moving average."""

from __future__ import annotations

from collections.abc import Callable

import torch

from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


def weights_of(engine: TrainingEngine) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in engine.hf_weights()}


def test_a_share_of_the_way_is_taken_and_a_share_of_one_is_a_reset(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    policy, reference = make_engine(), make_engine()
    start = weights_of(reference)
    policy.train_step(samples)
    target = weights_of(policy)
    reference.follow(target.items(), 0.25)
    for name, weight in weights_of(reference).items():
        torch.testing.assert_close(weight, 0.75 * start[name] + 0.25 * target[name])
    assert reference.logprobs(samples) != policy.logprobs(samples)
    reference.follow(target.items(), 1.0)
    assert reference.logprobs(samples) == policy.logprobs(samples)
