"""A loss that can't be trained on: named, its batch saved, no weight changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from agentgym.errors import InfraError, UserError
from agentgym.rl.losses import Loss, TokenLoss, TrainedTokens
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.faults import read_batch
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken(Loss):
    """how: which fault; only in a microbatch that holds the sample 3."""

    how: str = "nan"

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        here_N = tokens.sample_index == 3
        if not here_N.any():
            return TokenLoss(loss=-tokens.logprobs)
        loss = {
            "nan": torch.where(here_N, torch.nan, -tokens.logprobs),
            "shape": -tokens.logprobs.sum(),
            "gradient": -tokens.logprobs.detach(),
        }[self.how]
        return TokenLoss(loss=loss)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "a loss that is not finite"),
        ("shape", "a loss of another shape"),
        ("gradient", "a loss without a gradient"),
    ],
)
def test_it_is_named_with_the_batch_that_did_it_and_the_weights_are_untouched(
    make_engine: MakeEngine, samples: list[Sample], how: str, said: str
) -> None:
    engine = make_engine(loss=Broken(how=how), rows_per_microbatch=1)
    before = {name: weight.clone() for name, weight in engine.hf_weights()}
    with pytest.raises(UserError, match=rf"step 1: the loss Broken: it returned {said}.* changed no weight") as caught:
        engine.train_step(samples)
    for name, weight in engine.hf_weights():
        assert torch.equal(weight, before[name])
    found = re.search(r"is in (\S+\.pt)", str(caught.value))
    assert found is not None
    tokens = read_batch(Path(found[1]))
    assert (tokens.sample_index == 3).sum() == samples[3].num_trained_tokens
    again = Broken(how=how)(tokens, version=0).loss
    assert not (again.shape == tokens.logprobs.shape and again.requires_grad and again.isfinite().all())
    good = engine.train_step([sample for number, sample in enumerate(samples) if number != 3][:3])
    assert good["train/grad_norm"] > 0  # no gradient of the broken batch is left


def test_a_model_whose_weights_are_broken_is_not_the_fault_of_the_loss(
    make_engine: MakeEngine, samples: list[Sample]
) -> None:
    engine = make_engine()
    with torch.no_grad():
        next(engine._model.parameters()).fill_(torch.nan)
    with pytest.raises(InfraError, match="the loss Grpo: what it was given is not finite"):
        engine.train_step(samples)
