"""Weights of a dense Qwen3 under Hugging Face names, fused and reordered for inference.

Axes: H hidden size, D head dim, F feed-forward size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.generators.checkpoint import collect
from agentgym.generators.native.shape import Qwen3Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. qkv: [(heads + 2 kv heads) * D, H]. qk_norm: [heads + kv heads, D].

    Each head of q and k stands in rotation order: dimension i beside i + D/2, so that a rotation is one
    complex product. Scores don't change, since q and k are reordered alike. Norms are float32 and stand
    multiplied by the square root of their length; see `Qwen3Model._norm`.
    """

    attention_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor
    output: Tensor
    ffn_norm: Tensor
    gate_up: Tensor  # [2 F, H]
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Weights:
    """embedding, head: [V, H]; one tensor when they are tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def weight_shapes(shape: Qwen3Shape) -> dict[str, tuple[int, ...]]:
    """Every Hugging Face name of the model with its size; a tied lm_head is left out."""
    hidden, ffn, dim = shape.hidden_size, shape.ffn_size, shape.head_dim
    queries, keys = shape.num_heads * dim, shape.num_kv_heads * dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.q_norm": (dim,),
        "self_attn.k_norm": (dim,),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for index in range(shape.num_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": size for name, size in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not shape.tied:
        shapes["lm_head.weight"] = (shape.vocab_size, hidden)
    return shapes


def fuse(
    shape: Qwen3Shape,
    weights: Iterable[tuple[str, Tensor]],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Qwen3Weights:
    """Copies of all weights, as the forward pass wants them. Raises ValueError as `collect` does."""
    found = collect(weight_shapes(shape), weights)

    def copied(*names: str) -> Tensor:
        parts = [found[f"{name}.weight"].detach() for name in names]
        return torch.cat([part.to(device=device, dtype=dtype) for part in parts])

    def norm(name: str) -> Tensor:
        weight = found[f"{name}.weight"].detach().to(device=device, dtype=torch.float32)
        scaled: Tensor = weight * len(weight) ** 0.5
        return scaled

    def layer(prefix: str) -> LayerWeights:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q_norm, k_norm = (rotation_order(norm(f"{attention}.{name}_norm"), shape) for name in "qk")
        return LayerWeights(
            attention_norm=norm(f"{prefix}.input_layernorm"),
            qkv=torch.cat(
                [
                    rotation_order(copied(f"{attention}.q_proj", f"{attention}.k_proj"), shape),
                    copied(f"{attention}.v_proj"),
                ]
            ),
            qk_norm=torch.cat(
                [q_norm.expand(shape.num_heads, -1), k_norm.expand(shape.num_kv_heads, -1)]
            ).contiguous(),
            output=copied(f"{attention}.o_proj"),
            ffn_norm=norm(f"{prefix}.post_attention_layernorm"),
            gate_up=copied(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=copied(f"{mlp}.down_proj"),
        )

    embedding = copied("model.embed_tokens")
    return Qwen3Weights(
        embedding=embedding,
        layers=tuple(layer(f"model.layers.{index}") for index in range(shape.num_layers)),
        norm=norm("model.norm"),
        head=embedding if shape.tied else copied("lm_head"),
    )


def rotation_order(weight: Tensor, shape: Qwen3Shape) -> Tensor:
    """Puts dimension i + D/2 of each head right after dimension i. weight: [heads * D, ...]."""
    halves = weight.view(-1, 2, shape.head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
