"""The forward pass and its cache against transformers, and the reading of weights."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from plain_model import make_model

from agentgym.families.registry import read_architecture
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.layout import decode_batch, extend_batch
from agentgym.generators.native.model import DecoderModel
from agentgym.generators.native.weights import fuse
from agentgym.models.safetensors import read_folder

CPU = torch.device("cpu")


def load(folder, *, rows=8, max_len=128):
    shape = read_architecture(folder)
    model = DecoderModel(shape, fuse(shape, read_folder(folder), device=CPU, dtype=torch.float32), max_len=max_len)
    return model, KVCache(shape, rows=rows, max_len=max_len, device=CPU, dtype=torch.float32)


def extend(model, cache, tokens, rows, starts, ends):
    batch = extend_batch(
        cache, tokens, rows, np.array(starts), np.array(ends), heads_per_kv=model.architecture.heads_per_kv
    )
    return model.forward(batch, cache)


@pytest.fixture
def tokens():
    draw = random.Random(0)
    return np.array([[draw.randrange(300) for _ in range(128)] for _ in range(8)], np.int64)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_logits_of_ragged_contexts_equal_transformers(family, tied, tokens, tmp_path):
    plain = make_model(tmp_path, seed=2, tied=tied, family=family)
    model, cache = load(plain.folder)
    ends = [1, 7, 33, 128]
    logits = extend(model, cache, tokens, [3, 0, 7, 5], [0] * 4, ends)
    for row, end, mine in zip([3, 0, 7, 5], ends, logits, strict=True):
        assert (mine - plain.logits(tokens[row, :end])[-1]).abs().max() < 1e-5


def test_contexts_computed_in_parts_give_the_same_logits(old_model, tokens):
    model, cache = load(old_model.folder)
    rows, starts = [2, 6, 1], [0, 0, 0]
    for ends in ([5, 40, 1], [6, 90, 60], [50, 91, 128]):
        logits = extend(model, cache, tokens, rows, starts, ends)
        for row, end, mine in zip(rows, ends, logits, strict=True):
            assert (mine - old_model.logits(tokens[row, :end])[-1]).abs().max() < 1e-5
        starts = ends


def test_decoding_token_by_token_gives_the_logits_of_the_whole_context(old_model, tokens):
    model, cache = load(old_model.folder)
    positions = np.array([4, 30, 64, 9, 100])
    extend(model, cache, tokens, [0, 1, 2, 3, 4], [0] * 5, positions)
    for _ in range(20):
        logits = model.forward(decode_batch(cache, tokens, positions), cache)
        for row, position in enumerate(positions):
            theirs = old_model.logits(tokens[row, : position + 1])[-1]
            assert (logits[row] - theirs).abs().max() < 1e-5
        positions = positions + 1


def test_a_padded_row_leaves_its_neighbours_cache_alone(old_model, tokens):
    model, cache = load(old_model.folder)
    extend(model, cache, tokens, [0], [0], [128])
    before = cache.data[:, :, 0].clone()
    extend(model, cache, tokens, [1, 2], [0, 0], [3, 120])
    assert torch.equal(cache.data[:, :, 0], before)
    assert not cache.data[:, :, 1, :, 3:].any()  # nothing is written where there is no token


def test_a_copied_prefix_and_swapped_rows_give_the_same_logits(old_model, tokens):
    model, cache = load(old_model.folder)
    tokens[4, :50] = tokens[3, :50]
    extend(model, cache, tokens, [3, 6], [0, 0], [60, 60])
    cache.copy_prefix(3, [4], 50)
    logits = extend(model, cache, tokens, [4], [50], [70])
    assert (logits[0] - old_model.logits(tokens[4, :70])[-1]).abs().max() < 1e-5
    cache.swap(3, 6, 60)
    tokens[[3, 6]] = tokens[[6, 3]]
    for row, mine in zip([3, 6], extend(model, cache, tokens, [3, 6], [60, 60], [80, 61]), strict=True):
        theirs = old_model.logits(tokens[row, : 80 if row == 3 else 61])[-1]
        assert (mine - theirs).abs().max() < 1e-5


def test_bfloat16_stays_near_float32(old_model, tokens):
    shape = read_architecture(old_model.folder)
    model = DecoderModel(
        shape, fuse(shape, read_folder(old_model.folder), device=CPU, dtype=torch.bfloat16), max_len=64
    )
    cache = KVCache(shape, rows=2, max_len=64, device=CPU, dtype=torch.bfloat16)
    logprobs = extend(model, cache, tokens, [0], [0], [40]).log_softmax(-1)[0]
    theirs = old_model.logits(tokens[0, :40])[-1].log_softmax(-1)
    assert (logprobs - theirs)[theirs > -5].abs().max() < 0.3


def test_logits_of_a_bfloat16_model_are_sums_in_float32(old_model, tokens):
    """The last product against one in float64 of the same states, which are caught on their way to it."""
    shape = read_architecture(old_model.folder)
    weights = fuse(shape, read_folder(old_model.folder), device=CPU, dtype=torch.bfloat16)
    model, states = DecoderModel(shape, weights, max_len=64), []
    norm = model._norm
    model._norm = lambda values, scale: states.append(norm(values, scale)) or states[-1]
    cache = KVCache(shape, rows=2, max_len=64, device=CPU, dtype=torch.bfloat16)
    logits = extend(model, cache, tokens, [0], [0], [40])
    exact = states[-1].double() @ weights.embedding.double().t()
    assert states[-1].dtype == torch.bfloat16 and logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), exact, atol=1e-5, rtol=1e-5)
