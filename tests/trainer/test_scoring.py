"""Log-probabilities of no more tokens than are read, by no more ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentgym.rl.losses.corrected import Decoupled
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


@pytest.mark.parametrize("adapters", [False, True])
def test_only_trained_tokens_are_scored_where_others_are_not_read(
    make_engine: MakeEngine, samples: list[Sample], adapters: bool
) -> None:
    engine = make_engine(lora=LoraConfig(rank=4 if adapters else 0))
    score = engine.base_logprobs if adapters else engine.logprobs
    reached: list[int] = []
    hook = engine._model.lm_head.register_forward_hook(lambda *given: reached.append(given[-1].shape[-1]))  # type: ignore[union-attr]
    every = score(samples)
    assert sum(reached) == sum(len(sample.token_ids) - 1 for sample in samples)
    reached.clear()
    some = score(samples, trained_only=True)
    assert sum(reached) == sum(sample.num_trained_tokens for sample in samples)
    hook.remove()
    masked = [
        tuple(value * mask for value, mask in zip(row, sample.loss_mask, strict=True))
        for row, sample in zip(every, samples, strict=True)
    ]
    assert some == masked
    assert score(samples, read=False) == []


def test_the_old_policy_is_asked_for_trained_tokens_alone(make_engine: MakeEngine, samples: list[Sample]) -> None:
    engine = make_engine(loss=Decoupled(), epochs=2)
    reached: list[int] = []
    engine._model.lm_head.register_forward_hook(lambda *given: reached.append(given[-1].shape[-1]))  # type: ignore[union-attr]
    engine.train_step(samples)
    assert sum(reached) == 3 * sum(sample.num_trained_tokens for sample in samples)
