"""A loss in torchforge's form, by its import path."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.recipe import Recipe, build_recipe
from agentgym.rl.losses import Loss
from agentgym.rl.losses.reinforce import Reinforce
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

THEIRS = """
import torch
from torch import nn

class SimpleGRPO(nn.Module):
    def __init__(self, beta=0.1, mean_of="sequences"):
        super().__init__()
        self.beta, self.mean_of = beta, mean_of

    def forward(self, logprobs, ref_logprobs, advantages, padding_mask):
        log_ratio = ref_logprobs - logprobs
        gain = torch.exp(logprobs - logprobs.detach()) * advantages
        losses = (self.beta * (log_ratio.exp() - log_ratio - 1) - gain) * padding_mask
        if self.mean_of == "tokens":
            return losses.sum() / padding_mask.sum()
        return (losses.sum(dim=1) / padding_mask.sum(dim=1).clamp(min=1.0)).mean()

class Other(nn.Module):
    def forward(self, logits, labels):
        return logits.sum()

class PerToken(SimpleGRPO):
    def forward(self, logprobs, ref_logprobs, advantages, padding_mask):
        return logprobs * advantages
"""


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "their_losses.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "their_losses"
    sys.modules.pop("their_losses", None)


def recipe(**loss: object) -> Recipe:
    return build_recipe({"loss": loss})


@pytest.mark.parametrize(("mean_of", "aggregation"), [("sequences", "sequence_mean"), ("tokens", "token_mean")])
def test_its_step_equals_that_of_our_loss_of_the_same_formula_however_the_batch_is_split(
    theirs: str, make_engine: Callable[..., TrainingEngine], samples: list[Sample], mean_of: str, aggregation: str
) -> None:
    made = recipe(name=f"{theirs}:SimpleGRPO", beta=0.3, mean_of=mean_of, aggregation=aggregation).loss
    ours: Loss = Reinforce(kl_coef=0.3, aggregation=aggregation)  # type: ignore[arg-type]
    engines = [make_engine(loss=made, rows_per_microbatch=rows) for rows in (1, 4)] + [make_engine(loss=ours)]
    metrics = [engine.train_step(samples) for engine in engines]
    for found in metrics[:2]:
        assert found["train/loss"] == pytest.approx(metrics[2]["train/loss"], abs=1e-5)
        assert found["train/grad_norm"] == pytest.approx(metrics[2]["train/grad_norm"], rel=1e-4)
    weights = [torch.cat([w.flatten() for _, w in engine.hf_weights()]) for engine in engines]
    torch.testing.assert_close(weights[0], weights[2], atol=1e-4, rtol=0)


def test_the_saved_recipe_makes_it_again(theirs: str) -> None:
    made = recipe(name=f"{theirs}:SimpleGRPO", beta=0.3, reference=False)
    assert not made.loss.needs_reference
    assert build_recipe(to_mapping(made)) == made


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "their_losses:Other"}, "forward takes logits, labels; it must take logprobs, ref_logprobs"),
        ({"name": "their_losses:SimpleGRPO", "betta": 0.3}, "could not be made with .*unexpected keyword.*betta"),
        ({"name": "their_losses:SimpleGRPO", "aggregation": "fixed_horizon"}, "sequence_mean or token_mean"),
        ({"name": "their_losses:SimpleGRP"}, "'SimpleGRP' does not exist in their_losses"),
    ],
)
def test_what_does_not_fit_is_said_when_the_recipe_is_read(theirs: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        recipe(**settings)


def test_a_module_that_gives_a_loss_for_each_token_is_named_with_the_shape(
    theirs: str, make_engine: Callable[..., TrainingEngine], samples: list[Sample]
) -> None:
    engine = make_engine(loss=recipe(name=f"{theirs}:PerToken").loss)
    with pytest.raises(UserError, match=r"their_losses:PerToken returned a loss of shape \[\d+, \d+\]"):
        engine.train_step(samples)
