"""Weights of a dense decoder under Hugging Face names, fused and reordered for inference.

Axes: H hidden size, D head dim, F feed-forward size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.families.architecture import TIED_HEAD, Architecture
from agentgym.weights.adapters import named


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. qkv: [(heads + 2 kv heads) * D, H], qkv_bias: [(heads + 2 kv heads) * D].

    qk_norm: [heads + kv heads, D]. Families without the norm or without the biases have None.

    Each head of q and k is in rotation order: dimension i beside i + D/2, so that a rotation is one complex
    product. Scores don't change, since q and k are reordered in the same way. Norms are float32, multiplied by
    the square root of their length; see `DecoderModel._norm`.
    """

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    output: Tensor
    ffn_norm: Tensor
    gate_up: Tensor  # [2 F, H]
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """embedding, head: [V, H]; one tensor when they are tied and of one type: on a CPU the head is float32."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def fuse(
    architecture: Architecture, weights: Iterable[tuple[str, Tensor]], *, device: torch.device, dtype: torch.dtype
) -> DecoderWeights:
    """Copies of all weights in the layout of the forward pass. Raises ValueError as `collect` does."""
    found = named(architecture.hf_shapes(), weights)

    def copied(*names: str) -> Tensor:
        parts = [found(name).detach() for name in names]
        return torch.cat([part.to(device=device, dtype=dtype) for part in parts])

    def norm(name: str) -> Tensor:
        weight = found(f"{name}.weight").detach().to(device=device, dtype=torch.float32)
        scaled: Tensor = weight * len(weight) ** 0.5
        return scaled

    def qkv(attention: str, kind: str) -> Tensor:
        q, k, v = (f"{attention}.{name}_proj.{kind}" for name in "qkv")
        return torch.cat([rotation_order(copied(q, k), architecture), copied(v)])

    def qk_norm(attention: str) -> Tensor:
        q, k = (rotation_order(norm(f"{attention}.{name}_norm"), architecture) for name in "qk")
        heads = [q.expand(architecture.num_heads, -1), k.expand(architecture.num_kv_heads, -1)]
        return torch.cat(heads).contiguous()

    def layer(prefix: str) -> LayerWeights:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return LayerWeights(
            attention_norm=norm(f"{prefix}.input_layernorm"),
            qkv=qkv(attention, "weight"),
            qkv_bias=qkv(attention, "bias") if architecture.qkv_bias else None,
            qk_norm=qk_norm(attention) if architecture.qk_norm else None,
            output=copied(f"{attention}.o_proj.weight"),
            ffn_norm=norm(f"{prefix}.post_attention_layernorm"),
            gate_up=copied(f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
            down=copied(f"{mlp}.down_proj.weight"),
        )

    embedding = copied("model.embed_tokens.weight")
    head = embedding if architecture.tied else copied(TIED_HEAD)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(f"model.layers.{index}") for index in range(architecture.num_layers)),
        norm=norm("model.norm"),
        head=head.float() if device.type == "cpu" else head,  # logits are float32; see `matmul_float32`
    )


def rotation_order(weight: Tensor, architecture: Architecture) -> Tensor:
    """Puts dimension i + D/2 of each head right after dimension i. weight: [heads * D, ...]."""
    halves = weight.view(-1, 2, architecture.head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
