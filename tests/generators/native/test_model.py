"""The forward pass and its cache against transformers, and the reading of weights."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from agentgym.errors import UserError
from agentgym.generators.checkpoint import collect, read_folder, read_shapes
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.layout import decode_batch, extend_batch
from agentgym.generators.native.model import Qwen3Model
from agentgym.generators.native.shape import read_shape
from agentgym.generators.native.weights import fuse, weight_shapes

CPU = torch.device("cpu")


def load(folder, *, rows=8, max_len=128):
    shape = read_shape(folder)
    model = Qwen3Model(
        shape, fuse(shape, read_folder(folder), device=CPU, dtype=torch.float32), max_len=max_len
    )
    return model, KVCache(shape, rows=rows, max_len=max_len, device=CPU, dtype=torch.float32)


def extend(model, cache, tokens, rows, starts, ends):
    batch = extend_batch(
        cache, tokens, rows, np.array(starts), np.array(ends), heads_per_kv=model.shape.heads_per_kv
    )
    return model.forward(batch, cache)


@pytest.fixture
def tokens():
    draw = random.Random(0)
    return np.array([[draw.randrange(300) for _ in range(128)] for _ in range(8)], np.int64)


@pytest.mark.parametrize("which", ["old_model", "untied_model"])
def test_logits_of_ragged_contexts_equal_transformers(which, tokens, request):
    plain = request.getfixturevalue(which)
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
    shape = read_shape(old_model.folder)
    model = Qwen3Model(
        shape, fuse(shape, read_folder(old_model.folder), device=CPU, dtype=torch.bfloat16), max_len=64
    )
    cache = KVCache(shape, rows=2, max_len=64, device=CPU, dtype=torch.bfloat16)
    logprobs = extend(model, cache, tokens, [0], [0], [40]).log_softmax(-1)[0]
    theirs = old_model.logits(tokens[0, :40])[-1].log_softmax(-1)
    assert (logprobs - theirs)[theirs > -5].abs().max() < 0.3


def test_every_weight_of_the_checkpoint_is_known_by_name_and_size(old_model, untied_model):
    for plain in (old_model, untied_model):
        shapes = read_shapes(plain.folder)
        assert weight_shapes(read_shape(plain.folder)) == shapes
        assert ("lm_head.weight" in shapes) == (plain is untied_model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights[:-1], "1 of 24 weights did not come"),
        (lambda weights: [*weights, weights[3]], "came twice"),
        (lambda weights: [*weights, ("model.extra", weights[0][1])], "'model.extra' is not one of"),
        (lambda weights: [(name, tensor.flatten()) for name, tensor in weights], "has shape"),
    ],
)
def test_weights_that_are_not_exactly_the_models_are_refused(old_model, change, message):
    with pytest.raises(ValueError, match=message):
        collect(read_shapes(old_model.folder), change(old_model.weights()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"attention_bias": True}, "biases in attention"),
        ({"use_sliding_window": True}, "a sliding window"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope type 'yarn'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"vocab_size": None}, "lacks the field 'vocab_size'"),
    ],
)
def test_a_model_that_it_would_compute_wrongly_is_refused(old_model, tmp_path, change, message):
    config = json.loads((old_model.folder / "config.json").read_text()) | change
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with pytest.raises(UserError, match=message):
        read_shape(tmp_path)


def test_a_folder_without_model_or_with_a_torn_file_is_the_users_mistake(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        read_shape(tmp_path)
    with pytest.raises(UserError, match="no weights"):
        list(read_folder(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(UserError, match="no readable safetensors file"):
        list(read_folder(tmp_path))
