"""A model's architecture: its sizes, read from a Hugging Face folder's config.json, and the names of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgym.errors import UserError
from agentgym.models.config_file import check_fields
from agentgym.runs.files import read_json

if TYPE_CHECKING:
    from torch import Tensor


class Family(NamedTuple):
    """qk_norm: queries and keys are normalised, head by head. qkv_bias: their products and the values' have biases."""

    qk_norm: bool = False
    qkv_bias: bool = False
    rope_theta: float | None = None  # where config.json has none


FAMILIES = {"qwen3": Family(qk_norm=True), "qwen2": Family(qkv_bias=True), "llama": Family(rope_theta=10_000.0)}
"""By model_type: what the trainer and the native engine compute."""
MAX_CONFIG_BYTES = 16 << 20  # the largest in use has some 100 kB
TIED_HEAD = "lm_head.weight"
"""The one weight that may be stored or not: a tied head is the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's: frequencies whose wave is longer than a context are divided by `factor`, short ones are kept.

    low_freq_factor, high_freq_factor: original_context over them are the wavelengths, in tokens, from which on and
    up to which; in between it is interpolated. `inverse_frequencies` computes it.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes of a dense decoder. dim: of the hidden states. rope_theta: base of the rotary frequencies.

    tied: the output head is the embedding. qk_norm, qkv_bias: see `Family`.
    """

    model_type: str
    vocab_size: int
    dim: int
    ffn_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qk_norm: bool
    max_positions: int
    qkv_bias: bool = False
    rope_scaling: RopeScaling | None = None

    @property
    def heads_per_kv(self) -> int:
        return self.num_heads // self.num_kv_heads

    @property
    def num_parameters(self) -> int:
        return _num_parameters(self)

    @property
    def attention_break_even(self) -> float:
        """The row length at which attention costs as many operations as a layer's matrices."""
        width = self.num_heads * self.head_dim
        matrices = 2 * self.dim * (width + self.num_kv_heads * self.head_dim) + 3 * self.dim * self.ffn_dim
        return matrices / (2 * width)

    def hf_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight under its Hugging Face name; a tied lm_head is left out."""
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        of_layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj": (width, self.dim),
            "self_attn.k_proj": (kv_width, self.dim),
            "self_attn.v_proj": (kv_width, self.dim),
            "self_attn.o_proj": (self.dim, width),
            "mlp.gate_proj": (self.ffn_dim, self.dim),
            "mlp.up_proj": (self.ffn_dim, self.dim),
            "mlp.down_proj": (self.dim, self.ffn_dim),
            "input_layernorm": (self.dim,),
            "post_attention_layernorm": (self.dim,),
        }
        if self.qk_norm:
            of_layer |= {"self_attn.q_norm": (self.head_dim,), "self_attn.k_norm": (self.head_dim,)}
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.dim)}
        for layer in range(self.num_layers):
            shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
            if self.qkv_bias:
                biased = (f"self_attn.{name}_proj" for name in "qkv")
                shapes |= {f"model.layers.{layer}.{name}.bias": of_layer[name][:1] for name in biased}
        shapes["model.norm.weight"] = (self.dim,)
        if not self.tied:
            shapes[TIED_HEAD] = (self.vocab_size, self.dim)
        return shapes


@lru_cache(maxsize=32)
def _num_parameters(architecture: Architecture) -> int:
    """A plan for hundreds of GPUs asks for each of them."""
    return sum(math.prod(shape) for shape in architecture.hf_shapes().values())


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of any model. Raises UserError when it is missing or not a JSON object.

    Of a dense decoder also for a field that no model can have.
    """
    path = folder / "config.json"
    if not path.exists():
        raise UserError(f"there is no {path}: give a Hugging Face model folder (config.json and *.safetensors)")
    config: dict[str, Any] = read_json(path, max_bytes=MAX_CONFIG_BYTES)
    if not isinstance(config.get("model_type", ""), str):
        raise UserError(f"{path}: model_type is {config['model_type']!r:.80}; it must be a text")
    if config.get("model_type") in FAMILIES:
        check_fields(config, path)
    return config


def read_architecture(folder: Path) -> Architecture:
    """Raises UserError for a model that the trainer and the native engine would not compute exactly."""
    return architecture_of(read_config(folder), folder / "config.json")


def architecture_of(config: Mapping[str, Any], path: object) -> Architecture:
    """Reads the architecture from the contents of a config.json. path: names it in errors."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise UserError(
            f"{path}: model_type is {model_type!r}; the trainer and the native engine compute dense models of "
            f"{', '.join(map(repr, FAMILIES))}. Others can't be trained; to evaluate one use "
            "generator.engine=transformers, or vllm on a GPU"
        )
    family = FAMILIES[model_type]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    refused = {
        "a sliding window": config.get("use_sliding_window", False),
        "biases in attention": config.get("attention_bias", False),
        "biases in the feed-forward layers": config.get("mlp_bias", False),
        f"hidden_act {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
        f"rope type {rope_type!r}": rope_type not in ("default", "llama3"),
        "partly rotated heads": rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0,
    }
    for what, present in refused.items():
        if present:
            raise UserError(f"{path}: the trainer and the native engine do not compute {what}")
    try:
        return Architecture(
            model_type=model_type,
            vocab_size=config["vocab_size"],
            dim=config["hidden_size"],
            ffn_dim=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            rope_theta=float(
                rope.get("rope_theta") or config.get("rope_theta") or family.rope_theta or config["rope_theta"]
            ),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=family.qk_norm,
            max_positions=config.get("max_position_embeddings") or 32_768,
            qkv_bias=family.qkv_bias,
            rope_scaling=None if rope_type == "default" else _rope_scaling(rope),
        )
    except KeyError as error:
        raise UserError(f"{path} lacks the field {error}") from error


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling:
    return RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )


def collect(wanted: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Exactly the wanted weights, by name. An lm_head that is not wanted is tied, and dropped.

    Raises ValueError for a weight that is missing, unknown, repeated or of another shape.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in weights:
        if name == TIED_HEAD and name not in wanted:
            continue
        if name in found:
            raise ValueError(f"weight {name!r} came twice")
        if name not in wanted:
            raise ValueError(f"weight {name!r} is not one of this model's {len(wanted)}")
        if tuple(tensor.shape) != wanted[name]:
            raise ValueError(f"weight {name!r} has shape {tuple(tensor.shape)}; the model's is {wanted[name]}")
        found[name] = tensor
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{len(missing)} of {len(wanted)} weights did not come, first {missing[:3]}")
    return found
