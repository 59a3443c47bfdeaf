"""The sizes of a dense Qwen3, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Shape:
    """tied: the output head is the embedding. rope_theta: base of the rotary frequencies."""

    vocab_size: int
    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    max_positions: int
    tied: bool

    @property
    def heads_per_kv(self) -> int:
        return self.num_heads // self.num_kv_heads


def read_shape(folder: Path) -> Qwen3Shape:
    """Raises UserError where the folder holds no dense Qwen3 that this engine computes exactly."""
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"no model in {folder}: it has no config.json. Give a Hugging Face model folder "
            "(config.json and *.safetensors)."
        )
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if config.get("model_type") != "qwen3":
        raise UserError(
            f"{path}: model_type is {config.get('model_type')!r}; the native engine computes 'qwen3' only. "
            "Use generator.engine=vllm for other models."
        )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    refused = {
        "a sliding window": config.get("use_sliding_window", False),
        "biases in attention": config.get("attention_bias", False),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
        f"rope type {rope.get('rope_type')!r}": rope.get("rope_type", "default") != "default",
    }
    for what, present in refused.items():
        if present:
            raise UserError(f"{path}: the native engine does not compute {what}; use generator.engine=vllm.")
    try:
        return Qwen3Shape(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            ffn_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            norm_eps=config.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta") or config.get("rope_theta", 10_000.0),
            max_positions=config.get("max_position_embeddings", 32_768),
            tied=config.get("tie_word_embeddings", False),
        )
    except KeyError as error:
        raise UserError(f"{path} lacks the field {error}; is it a Qwen3 config?") from error
