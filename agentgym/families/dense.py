"""Reads the config.json of dense decoders that are one function but for a norm and biases: Llama, Qwen2, Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture, RopeScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """qk_norm, qkv_bias: as `Architecture` has them. rope_theta: where config.json has none."""

    qk_norm: bool = False
    qkv_bias: bool = False
    rope_theta: float | None = None

    def refusal(self, config: Mapping[str, Any]) -> str:
        """What of the config is not computed exactly; empty if all of it is."""
        rope = _rope(config)
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        refused = {
            "a sliding window": config.get("use_sliding_window", False),
            "biases in attention": config.get("attention_bias", False),
            "biases in the feed-forward layers": config.get("mlp_bias", False),
            f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
            f"rope type {rope_type!r}": rope_type not in ("default", "llama3"),
            "partly rotated heads": rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0,
        }
        return next((what for what, present in refused.items() if present), "")

    def read(self, config: Mapping[str, Any], path: object) -> Architecture:
        """Of a config without a `refusal`. Raises UserError for a field that is missing."""
        rope = _rope(config)
        scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
        try:
            return self._architecture(config, rope, scaled=scaled)
        except KeyError as error:
            raise UserError(f"{path} lacks the field {error}") from error

    def _architecture(self, config: Mapping[str, Any], rope: Mapping[str, Any], *, scaled: bool) -> Architecture:
        return Architecture(
            model_type=config["model_type"],
            vocab_size=config["vocab_size"],
            dim=config["hidden_size"],
            ffn_dim=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            rope_theta=float(
                rope.get("rope_theta") or config.get("rope_theta") or self.rope_theta or config["rope_theta"]
            ),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=self.qk_norm,
            max_positions=config.get("max_position_embeddings") or 32_768,
            qkv_bias=self.qkv_bias,
            rope_scaling=_rope_scaling(rope) if scaled else None,
        )


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return found


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling:
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )
