"""The fields of a config.json, checked, so that what follows from them can be computed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym.errors import UserError

_SIZES: Mapping[str, int] = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 1 << 14,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 14,
    "max_position_embeddings": 1 << 40,
}
"""Of dense decoders: the most that is believed, far above any model's."""
_NUMBERS: Mapping[str, float] = {"rms_norm_eps": 1.0, "rope_theta": 1e15, "partial_rotary_factor": 1.0}
_ROPE: Mapping[str, float] = {
    "rope_theta": 1e15, "partial_rotary_factor": 1.0, "factor": 1e6, "low_freq_factor": 1e6, "high_freq_factor": 1e6,
    "original_max_position_embeddings": 1 << 40,
}  # fmt: skip
_FLAGS = ("tie_word_embeddings", "use_sliding_window", "attention_bias", "mlp_bias")
_NULLABLE = ("num_key_value_heads", "head_dim", "max_position_embeddings")


def check_fields(config: Mapping[str, Any], path: Path) -> None:
    """Checks the fields of a dense decoder; a missing field is accepted here. Raises UserError with file and field."""
    for wrong in _wrong_fields(config):
        raise UserError(f"{path}: {wrong}")


def _wrong_fields(config: Mapping[str, Any]) -> Iterator[str]:
    for name, most in _SIZES.items():
        if name in config and not (config[name] is None and name in _NULLABLE):
            yield from _unless(_is_whole(config[name], most), name, config, f"a whole number from 1 to {most:,}")
    yield from _wrong_numbers(config, _NUMBERS, "")
    for name in _FLAGS:
        yield from _unless(config.get(name) in (None, False, True), name, config, "true or false")
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name) or {}
        yield from _unless(isinstance(rope, Mapping), name, config, "an object")
        yield from _wrong_numbers(rope, _ROPE, f"{name}.")
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        yield f"num_attention_heads is {heads}, which is not a multiple of num_key_value_heads, {kv_heads}"
    width = config.get("head_dim") or (config["hidden_size"] // heads if heads and "hidden_size" in config else 2)
    if width % 2 or not width:
        yield f"head_dim, or hidden_size / num_attention_heads, is {width}; it must be even, for rotary positions"


def _wrong_numbers(fields: Mapping[str, Any], known: Mapping[str, float], of: str) -> Iterator[str]:
    for name, most in known.items():
        if fields.get(name) is not None:
            yield from _unless(_is_number(fields[name], most), name, fields, f"a number above 0, at most {most:g}", of)


def _unless(right: bool, name: str, fields: Mapping[str, Any], allowed: str, of: str = "") -> Iterator[str]:
    if not right:
        yield f"{of}{name} is {fields[name]!r:.80}; it must be {allowed}"


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _is_number(value: object, most: float) -> bool:
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most and math.isfinite(value)
    )
