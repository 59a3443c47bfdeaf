"""A model's architecture: its sizes, what its layers are, and the names and shapes of its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


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
class HeadTransform:
    """What a model does to the products of its head: logits = softcap * tanh(scale * products / softcap).

    Without a softcap (0.0), logits = scale * products.
    """

    scale: float = 1.0
    softcap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """The mixture of experts in some layers. num: experts of such a layer. top_k: those that compute one token."""

    num: int
    top_k: int
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WeightShapes:
    """The shapes of a model's weights under their names in files, where no formula here gives them."""

    by_name: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The sizes of a decoder. dim: of the hidden states. rope_theta: base of the rotary frequencies.

    tied: the output head is the embedding. qk_norm: queries and keys are normalised, head by head. qkv_bias: their
    products and the values' have biases. layers: the kind of each layer by transformers' names ("full_attention",
    "sliding_attention", "linear_attention", ...); empty where all are "full_attention". window: tokens that
    "sliding_attention" reaches back, the own one included; of "chunked_attention" the size of a chunk.
    renormalised: its config.json has norm_topk_prob, see `Router.scores`.
    own_shapes: of a model whose weights are not those of a dense Llama, Qwen2 or Qwen3.
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
    layers: tuple[str, ...] = ()
    window: int | None = None
    head: HeadTransform = HeadTransform()
    experts: Experts | None = None
    renormalised: bool = False
    own_shapes: WeightShapes | None = field(default=None, compare=False, repr=False)

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """Without repetition, in the order of the layers."""
        return tuple(dict.fromkeys(self.layers)) or ("full_attention",)

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
        """The shape of every weight under its Hugging Face name in files; a tied lm_head is left out."""
        if self.own_shapes is not None:
            return dict(self.own_shapes.by_name)
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


def _num_parameters(architecture: Architecture) -> int:
    own = architecture.own_shapes
    return _num_dense(architecture) if own is None else _num_in(own)


@lru_cache(maxsize=32)
def _num_dense(architecture: Architecture) -> int:
    """A plan for hundreds of GPUs asks for each of them."""
    return sum(math.prod(shape) for shape in architecture.hf_shapes().values())


@lru_cache(maxsize=32)
def _num_in(shapes: WeightShapes) -> int:
    return sum(math.prod(shape) for shape in shapes.by_name.values())


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
