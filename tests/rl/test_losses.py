"""The metrics of losses, what bounds them, and how tokens are weighed; their equations: test_policy_losses.py."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tiny_model import draw_samples
from torch import Tensor

from agentgym.rl.losses import TrainedTokens
from agentgym.rl.losses.aggregation import token_weights
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.packing import pack

COUNT = 200


def make_tokens(*, seed: int = 0, **columns: Tensor) -> TrainedTokens:
    torch.manual_seed(seed)
    sampler = -torch.rand(COUNT, dtype=torch.float64) * 4
    made = {
        "logprobs": (sampler + torch.randn(COUNT, dtype=torch.float64) * 0.6).requires_grad_(),
        "entropy": torch.rand(COUNT),
        "sampler_logprobs": sampler,
        "old_logprobs": sampler + torch.randn(COUNT, dtype=torch.float64) * 0.2,
        "ref_logprobs": sampler + torch.randn(COUNT, dtype=torch.float64) * 0.3,
        "advantages": torch.randn(COUNT, dtype=torch.float64),
        "versions": torch.randint(0, 3, (COUNT,)),
        "sample_index": torch.zeros(COUNT, dtype=torch.int64),
    }
    return TrainedTokens(**(made | columns))


def test_an_unlikely_token_with_negative_advantage_has_a_bounded_gradient_that_stays() -> None:
    tokens = make_tokens(
        logprobs=torch.full((COUNT,), -0.1, dtype=torch.float64, requires_grad=True),
        sampler_logprobs=torch.full((COUNT,), -12.0, dtype=torch.float64),
        advantages=torch.full((COUNT,), -1.0, dtype=torch.float64),
    )
    Grpo(importance_cap=2.0)(tokens, version=0).loss.sum().backward()
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.tolist() == pytest.approx([2.0] * COUNT)


def test_a_broken_logprob_leaves_the_loss_finite() -> None:
    tokens = make_tokens(sampler_logprobs=torch.full((COUNT,), -1e4, dtype=torch.float64))
    assert Grpo(kl_coef=0.1)(tokens, version=0).loss.isfinite().all()


def test_metrics_equal_plain_sums() -> None:
    tokens = make_tokens()
    config = Grpo(kl_coef=0.1)
    result = config(tokens, version=2)
    new, old = tokens.logprobs.tolist(), tokens.sampler_logprobs.tolist()
    ratios = [math.exp(a - b) for a, b in zip(new, old, strict=True)]
    clipped = [
        (adv > 0 and min(r, 2.0) > 1.28) or (adv < 0 and r < 0.8)
        for r, adv in zip(ratios, tokens.advantages.tolist(), strict=True)
    ]
    expected = {
        "train/ratio_mean": sum(ratios) / COUNT,
        "train/mismatch_kl": sum(r - 1 - math.log(r) for r in ratios) / COUNT,
        "train/mismatch_abs_mean": sum(abs(a - b) for a, b in zip(new, old, strict=True)) / COUNT,
        "train/clip_share": sum(clipped) / COUNT,
        "train/entropy": sum(tokens.entropy.tolist()) / COUNT,
        "train/kl_ref": sum(
            math.exp(r - n) - (r - n) - 1 for r, n in zip(tokens.ref_logprobs.tolist(), new, strict=True)
        )
        / COUNT,
    }
    unused = {"train/correction_mean", "train/correction_cut_share"}
    assert result.metrics.keys() == config.metrics.keys() - unused
    means = {name: float(result.metrics[name].mean()) for name in expected}
    assert means == pytest.approx(expected, abs=1e-6)
    distances = [abs(a - b) for a, b in zip(new, old, strict=True)]
    fresh = [d for d, v in zip(distances, tokens.versions.tolist(), strict=True) if v == 2]
    assert float(result.metrics["train/mismatch_max"].max()) == pytest.approx(max(distances))
    assert float(result.metrics["train/mismatch_fresh_max"].max()) == pytest.approx(max(fresh))
    assert max(fresh) < max(distances)


def test_without_fresh_tokens_there_is_no_fresh_mismatch() -> None:
    none_N = Grpo()(make_tokens(), version=7).metrics["train/mismatch_fresh_max"]
    assert none_N.tolist() == [-math.inf] * COUNT  # which a step leaves out


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_horizon"])
def test_an_aggregation_weighs_each_trained_token_as_it_says_and_no_masked_one(aggregation: str) -> None:
    """The batch's loss, if the loss of a token were its advantage, against plain sums over the samples."""
    samples = draw_samples(12, longest=30)
    nothing = (0.0,) * len(samples[5].token_ids)
    samples[5] = replace(samples[5], loss_mask=nothing, advantages=nothing)
    batch = pack(samples, seq_len=32)
    trained = [s for s in samples if s.num_trained_tokens]
    expected = {
        "token_mean": sum(sum(s.advantages) for s in trained) / sum(s.num_trained_tokens for s in trained),
        "sequence_mean": sum(sum(s.advantages) / s.num_trained_tokens for s in trained) / 11,
        "fixed_horizon": sum(sum(s.advantages) / 50 for s in trained) / 11,
    }
    weights = token_weights(batch, aggregation, horizon=50)  # type: ignore[arg-type]
    assert float((batch.advantages * weights).sum()) == pytest.approx(expected[aggregation], abs=1e-6)
    assert weights[~batch.loss_mask].count_nonzero() == 0
    assert (weights[batch.loss_mask] > 0).all()
