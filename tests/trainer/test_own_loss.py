"""A loss of a third party in the engine: its metrics arrive, each combined as it declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from agentgym.recipe import build_recipe
from agentgym.rl.losses import Loss, Reduction, TokenLoss, TrainedTokens
from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted(Loss):
    """What a third party would write: a loss with metrics of its own, of every reduction."""

    metrics: ClassVar[Mapping[str, Reduction]] = {
        "their/shift_mean": "mean",
        "their/logprob_max": "max",
        "their/tokens_sum": "sum",
        "their/long_samples_max": "max",  # of no token here
        "their/never_mean": "mean",  # not given
    }

    shift: float = 0.5

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        logprobs_N = tokens.logprobs.detach()
        metrics = {
            "their/shift_mean": logprobs_N + self.shift,
            "their/logprob_max": logprobs_N,
            "their/tokens_sum": torch.tensor(len(logprobs_N)),
            "their/long_samples_max": tokens.sample_index[tokens.sample_index > 100],
        }
        return TokenLoss(loss=-tokens.logprobs * self.shift, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undeclared(Shifted):
    metrics: ClassVar[Mapping[str, Reduction]] = {"their/shift_mean": "mean"}


def test_a_loss_by_import_path_adds_metrics_of_every_reduction(make_engine: MakeEngine, samples: list[Sample]) -> None:
    chosen = {"name": f"{__name__}:Shifted", "shift": 0.25, "aggregation": "fixed_horizon", "horizon": 50}
    loss = build_recipe({"loss": chosen}).loss
    engine = make_engine(loss=loss, rows_per_microbatch=1)
    pairs = [
        pair
        for s, lp in zip(samples, engine.logprobs(samples), strict=True)
        for pair in zip(lp, s.loss_mask, strict=True)
    ]
    trained = torch.tensor([logprob for logprob, mask in pairs if mask])
    metrics = engine.train_step(samples)
    assert metrics["train/loss"] == pytest.approx(float(-trained.sum() * 0.25 / 50 / len(samples)), abs=1e-5)
    theirs = {name: value for name, value in metrics.items() if name.startswith("their/")}
    assert theirs == {
        "their/shift_mean": pytest.approx(float(trained.mean()) + 0.25, abs=1e-5),
        "their/logprob_max": pytest.approx(float(trained.max()), abs=1e-5),
        "their/tokens_sum": len(trained),
    }


def test_a_metric_that_the_loss_does_not_declare_is_refused(make_engine: MakeEngine, samples: list[Sample]) -> None:
    with pytest.raises(ValueError, match=r"gave the metric 'their/logprob_max' without declaring it"):
        make_engine(loss=Undeclared()).train_step(samples)
