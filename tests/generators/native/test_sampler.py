"""The sampler against slow computations and against statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agentgym.generators.native.sampler import keep_top, sample, uniforms


def draw(logits_BV, *, seeds, place=0, temperature=1.0, top_k=0, top_p=1.0):
    count = len(logits_BV)
    return sample(
        logits_BV,
        uniforms_B=uniforms(np.asarray(seeds, np.uint64), np.full(count, place)),
        temperature_B=np.full(count, temperature, np.float32),
        top_k_B=np.full(count, top_k, np.int64),
        top_p_B=np.full(count, top_p, np.float32),
    )


@pytest.mark.parametrize("limits", [{}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.6}], ids=str)
def test_tokens_come_as_often_as_their_probability_says(limits):
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -3.0])
    count = 40_000
    tokens, logprobs = draw(logits.expand(count, -1), seeds=np.arange(count), **limits)
    for token in range(len(logits)):
        came = tokens == token
        if not came.any():
            continue
        prob = float(np.exp(logprobs[came][0]))
        assert came.mean() == pytest.approx(prob, abs=5 * (prob * (1 - prob) / count) ** 0.5)
    claimed = sum(np.exp(logprobs[tokens == token][0]) for token in set(tokens.tolist()))
    assert claimed == pytest.approx(1.0, abs=1e-3)  # nothing was left out


def test_noise_is_even_and_differs_by_seed_and_place():
    by_seed = uniforms(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.int64))
    by_place = uniforms(np.full(20_000, 7, np.uint64), np.arange(20_000))
    for numbers in (by_seed, by_place):
        assert numbers.min() >= 0 and numbers.max() < 1
        assert len(np.unique(numbers)) == len(numbers)
        counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi-square, 19 degrees of freedom: p about 7e-4
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_a_token_without_probability_is_never_drawn():
    logits = torch.full((2000, 6), -torch.inf)
    logits[:, [1, 4]] = 0.0
    tokens, logprobs = draw(logits, seeds=np.arange(2000))
    assert set(tokens.tolist()) == {1, 4}
    assert np.allclose(logprobs, np.log(0.5))


def test_each_row_has_its_own_settings():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    settings = [(0.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 3, 1.0), (2.0, 10, 0.5)]
    seeds = np.arange(4, dtype=np.uint64)
    together = sample(
        logits,
        uniforms_B=uniforms(seeds, np.zeros(4, np.int64)),
        temperature_B=np.array([t for t, _, _ in settings], np.float32),
        top_k_B=np.array([k for _, k, _ in settings], np.int64),
        top_p_B=np.array([p for _, _, p in settings], np.float32),
    )
    for row, (temperature, top_k, top_p) in enumerate(settings):
        token, logprob = draw(logits[row : row + 1], seeds=[row], temperature=temperature, top_k=top_k, top_p=top_p)
        assert together[0][row] == token[0]
        assert together[1][row] == pytest.approx(logprob[0], abs=1e-6)


def test_the_likeliest_token_always_stays():
    logits = torch.tensor([[0.0, 5.0, 1.0]])
    kept = keep_top(logits, torch.tensor([0]), torch.tensor([1e-6]))
    assert kept.tolist() == [[-torch.inf, 5.0, -torch.inf]]
    kept = keep_top(logits, torch.tensor([2]), torch.tensor([1.0]))
    assert kept.tolist() == [[-torch.inf, 5.0, 1.0]]
