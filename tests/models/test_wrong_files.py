"""Files of a model with wrong types and absurd sizes: one sentence with the file and the field, in a dry run too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.models.resolve import check_local
from agentgym.models.tiny import policy_path
from agentgym.text.tokenizer import HuggingFaceTokenizer

DEEP = "[" * 200_000 + "]" * 200_000
ROPE = {"rope_theta": 1e4, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(policy_path(), tmp_path / "model"))


def change(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "big"), ("hidden_size", True), ("hidden_size", None), ("hidden_size", 1e400),
        ("rms_norm_eps", "x"), ("rms_norm_eps", -1), ("rms_norm_eps", 0), ("rms_norm_eps", float("nan")),
        ("num_hidden_layers", 0), ("num_hidden_layers", 10**9), ("num_hidden_layers", [2]),
        ("vocab_size", -1), ("vocab_size", 10**12), ("intermediate_size", 1.5), ("num_attention_heads", 0),
        ("num_key_value_heads", 3), ("num_key_value_heads", "2"), ("head_dim", 7), ("head_dim", -8),
        ("max_position_embeddings", "x"), ("max_position_embeddings", 0), ("tie_word_embeddings", "false"),
        ("model_type", ["llama"]), ("model_type", 3), ("attention_bias", "no"), ("rope_parameters", [1]),
        ("rope_parameters", "x"), ("rope_parameters", {"rope_theta": "x"}), ("rope_scaling", 4),
        ("rope_parameters", {**ROPE, "factor": 0}), ("rope_parameters", {**ROPE, "factor": {}}),
    ],
)  # fmt: skip
def test_a_field_of_config_json_that_no_model_has_is_named(model: Path, field: str, value: object) -> None:
    change(model / "config.json", **{field: value})
    for read in (check_local, lambda path: read_architecture(Path(path))):
        with pytest.raises(UserError, match=rf"model/config\.json: .*{field}") as refused:
            read(str(model))
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eos_token", 5), ("eos_token", ["x"]), ("eos_token", {"a": 1}), ("bos_token", 7),
        ("pad_token", {"content": 3}),
        ("tokenizer_class", 5), ("auto_map", 5), ("chat_template", 5), ("chat_template", [1]),
        ("chat_template", {"a": 1}), ("added_tokens_decoder", [1]), ("added_tokens_decoder", {"x": {"content": "a"}}),
        ("added_tokens_decoder", {"-1": {"content": "a"}}), ("added_tokens_decoder", {"5": 3}),
        ("added_tokens_decoder", {"9" * 5000: {"content": "a"}}), ("added_tokens_decoder", {"5": {"content": 3}}),
        ("model_max_length", "x"), ("additional_special_tokens", 5), ("extra_special_tokens", "x"),
    ],
)  # fmt: skip
def test_a_field_of_tokenizer_config_json_of_a_wrong_type_is_named(model: Path, field: str, value: object) -> None:
    change(model / "tokenizer_config.json", **{field: value})
    refused_by_all(model, rf"model/tokenizer_config\.json: {field} is ")


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("added_tokens", 5, "added_tokens"), ("added_tokens", [5], "added_tokens"), ("version", 3, "version"),
        ("added_tokens", [{"id": -1, "content": "x"}], "added_tokens"), ("model", 5, "model"),
        ("added_tokens", [{"id": 10**15, "content": "x"}], "added_tokens"), ("pre_tokenizer", 5, "pre_tokenizer"),
        ("model", {"type": "BPE", "vocab": 5, "merges": []}, "expected a map"), ("decoder", [], "decoder"),
        ("normalizer", {"type": "Nope"}, "Normalizer"), ("padding", "x", "padding"), ("model", None, "[Mm]odel"),
    ],
)  # fmt: skip
def test_a_field_of_tokenizer_json_of_a_wrong_type_is_named(model: Path, field: str, value: object, named: str) -> None:
    change(model / "tokenizer.json", **{field: value})
    refused_by_all(model, rf"model/tokenizer\.json.*{named}")


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "tokenizer.json"])
@pytest.mark.parametrize(
    "content",
    [DEEP.encode(), b'{"a": ' + DEEP.encode() + b"}", b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}", b"", b"[]"],
)
def test_a_file_that_cannot_be_read_is_named(model: Path, file: str, content: bytes) -> None:
    (model / file).write_bytes(content)
    with pytest.raises(UserError, match=rf"model/{file}") as refused:
        check_local(str(model))
    assert "\n" not in str(refused.value)


def test_a_file_of_an_absurd_size_is_not_read(model: Path) -> None:
    for file, size in (("tokenizer.json", 1 << 29), ("config.json", 1 << 25)):
        with (model / file).open("r+b") as opened:
            opened.truncate(size)
        with pytest.raises(UserError, match=rf"{file}: it has {size:,} bytes"):
            check_local(str(model))


def refused_by_all(model: Path, expected: str) -> None:
    """By the dry run, and where it is loaded."""
    for read in (check_local, HuggingFaceTokenizer):
        with pytest.raises(UserError, match=expected) as refused:
            read(str(model))
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_sound_files_are_taken(model: Path) -> None:
    change(model / "config.json", num_key_value_heads=None, use_sliding_window=None, rope_scaling=None)
    token = {"__type": "AddedToken", "content": "<|im_end|>", "special": True}
    change(model / "tokenizer_config.json", eos_token=token, model_max_length=1e30, extra_special_tokens=None)
    check_local(str(model))
    assert HuggingFaceTokenizer(str(model)).end_ids
