"""Losses and their gradients against a slow computation in plain Python floats."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from agentgym.rl.losses import TrainedTokens
from agentgym.rl.losses.aggregation import token_weights
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.losses.mismatch import k3, log_ratio
from agentgym.rl.losses.reinforce import Reinforce
from agentgym.rl.packing import TrainBatch, pack
from agentgym.types import Sample

COUNT = 200


def make_tokens(*, seed: int = 0, **columns: Tensor) -> TrainedTokens:
    torch.manual_seed(seed)
    sampler = -torch.rand(COUNT, dtype=torch.float64) * 4
    made = {
        "logprobs": (sampler + torch.randn(COUNT, dtype=torch.float64) * 0.6).requires_grad_(),
        "entropy": torch.rand(COUNT),
        "sampler_logprobs": sampler,
        "ref_logprobs": sampler + torch.randn(COUNT, dtype=torch.float64) * 0.3,
        "advantages": torch.randn(COUNT, dtype=torch.float64),
        "versions": torch.randint(0, 3, (COUNT,)),
        "sample_index": torch.zeros(COUNT, dtype=torch.int64),
    }
    return TrainedTokens(**(made | columns))


def slow_grpo(
    logp: float, sampler: float, ref: float, advantage: float, config: Grpo | Reinforce
) -> tuple[float, float]:
    """The loss of one token and its derivative with respect to logp, case by case."""
    if isinstance(config, Reinforce):
        loss, slope = -advantage, -advantage
    else:
        ratio = math.exp(min(20.0, max(-20.0, logp - sampler)))
        weight = min(ratio, config.importance_cap)
        if advantage > 0 and weight > 1 + config.clip_high:
            loss, slope = -(1 + config.clip_high) * advantage, 0.0
        elif advantage < 0 and weight < 1 - config.clip_low:
            loss, slope = -(1 - config.clip_low) * advantage, 0.0
        else:
            loss, slope = -weight * advantage, -weight * advantage
    if config.kl_coef > 0:
        loss += config.kl_coef * (math.exp(ref - logp) - (ref - logp) - 1)
        slope += config.kl_coef * (1 - math.exp(ref - logp))
    return loss, slope


@pytest.mark.parametrize(
    "config",
    [
        Grpo(),
        Grpo(kl_coef=0.1),
        Grpo(clip_low=0.1, clip_high=0.5, importance_cap=1.2),
        Reinforce(),
        Reinforce(kl_coef=0.3),
    ],
)
def test_grpo_equals_the_slow_computation_in_value_and_gradient(config: Grpo | Reinforce) -> None:
    tokens = make_tokens()
    loss = config(tokens, version=0).loss
    loss.sum().backward()
    columns = (tokens.logprobs, tokens.sampler_logprobs, tokens.ref_logprobs, tokens.advantages)
    expected = [slow_grpo(*values, config) for values in zip(*(c.tolist() for c in columns), strict=True)]
    assert loss.tolist() == pytest.approx([value for value, _ in expected], abs=1e-12)
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.tolist() == pytest.approx([slope for _, slope in expected], abs=1e-12)


def test_the_ratio_is_against_the_sampler_and_not_against_the_trainer_itself() -> None:
    shifted = make_tokens()
    other_sampler = make_tokens(sampler_logprobs=shifted.sampler_logprobs - 1.0)
    losses = [Grpo()(t, version=0).loss.sum().item() for t in (shifted, other_sampler)]
    assert losses[0] != pytest.approx(losses[1])
    uncorrected = Reinforce()
    ignored = [uncorrected(t, version=0).loss.sum().item() for t in (shifted, other_sampler)]
    assert ignored[0] == ignored[1]


def test_an_unlikely_token_with_negative_advantage_has_a_bounded_gradient_that_stays() -> None:
    tokens = make_tokens(
        logprobs=torch.full((COUNT,), -0.1, dtype=torch.float64, requires_grad=True),
        sampler_logprobs=torch.full((COUNT,), -12.0, dtype=torch.float64),
        advantages=torch.full((COUNT,), -1.0, dtype=torch.float64),
    )
    Grpo(importance_cap=2.0)(tokens, version=0).loss.sum().backward()
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.tolist() == pytest.approx([2.0] * COUNT)


def test_zero_advantage_gives_zero_gradient() -> None:
    tokens = make_tokens(advantages=torch.zeros(COUNT, dtype=torch.float64))
    Grpo()(tokens, version=0).loss.sum().backward()
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.count_nonzero() == 0


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
    assert result.metrics.keys() == config.metrics.keys()
    means = {name: float(result.metrics[name].mean()) for name in expected}
    assert means == pytest.approx(expected, abs=1e-6)
    distances = [abs(a - b) for a, b in zip(new, old, strict=True)]
    fresh = [d for d, v in zip(distances, tokens.versions.tolist(), strict=True) if v == 2]
    assert float(result.metrics["train/mismatch_max"].max()) == pytest.approx(max(distances))
    assert float(result.metrics["train/mismatch_fresh_max"].max()) == pytest.approx(max(fresh))
    assert max(fresh) < max(distances)


def test_without_fresh_tokens_there_is_no_fresh_mismatch() -> None:
    assert Grpo()(make_tokens(), version=7).metrics["train/mismatch_fresh_max"].numel() == 0


def test_cross_entropy_is_the_negative_logprob() -> None:
    tokens = make_tokens()
    assert torch.equal(CrossEntropy()(tokens, version=0).loss, -tokens.logprobs)


def test_k3_is_never_negative_and_zero_only_where_both_agree() -> None:
    ratio = log_ratio(torch.linspace(-3, 3, 7), torch.zeros(7))
    assert (k3(ratio) >= 0).all()
    assert k3(ratio)[3] == 0


def make_batch() -> tuple[TrainBatch, list[Sample]]:
    draw = random.Random(0)
    samples = []
    for number in range(12):
        length = draw.randint(3, 30)
        mask = (0.0, *(float(draw.random() < 0.6) for _ in range(length - 1)))
        mask = tuple(0.0 for _ in mask) if number == 5 else mask
        samples.append(
            Sample(
                sample_id=str(number),
                token_ids=tuple(range(length)),
                loss_mask=mask,
                logprobs=(0.0,) * length,
                advantages=tuple(m * draw.gauss(0, 1) for m in mask),
                versions=(0,) * length,
            )
        )
    return pack(samples, seq_len=32), samples


def weighted_sum(batch: TrainBatch, weights: Tensor) -> float:
    """The batch's loss if the loss of a token were its advantage."""
    return float((batch.advantages * weights).sum())


def test_token_mean_divides_by_the_trained_tokens_of_the_whole_batch() -> None:
    batch, samples = make_batch()
    values = [a for s in samples for a, m in zip(s.advantages, s.loss_mask, strict=True) if m]
    weights = token_weights(batch, "token_mean", horizon=1)
    assert weighted_sum(batch, weights) == pytest.approx(sum(values) / len(values), abs=1e-6)


def test_sequence_mean_is_the_mean_of_the_sequences_means() -> None:
    batch, samples = make_batch()
    means = [sum(s.advantages) / s.num_trained_tokens for s in samples if s.num_trained_tokens]
    weights = token_weights(batch, "sequence_mean", horizon=1)
    assert len(means) < len(samples)
    assert weighted_sum(batch, weights) == pytest.approx(sum(means) / len(means), abs=1e-6)


def test_fixed_horizon_divides_each_sequence_by_the_same_number() -> None:
    batch, samples = make_batch()
    sums = [sum(s.advantages) / 50 for s in samples if s.num_trained_tokens]
    weights = token_weights(batch, "fixed_horizon", horizon=50)
    assert weighted_sum(batch, weights) == pytest.approx(sum(sums) / len(sums), abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_horizon"])
def test_masked_tokens_have_no_weight(aggregation: str) -> None:
    batch, _ = make_batch()
    weights = token_weights(batch, aggregation, horizon=50)  # type: ignore[arg-type]
    assert weights[~batch.loss_mask].count_nonzero() == 0
    assert (weights[batch.loss_mask] > 0).all()
