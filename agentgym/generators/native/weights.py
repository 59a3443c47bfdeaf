"""Weights of a dense Qwen3 under Hugging Face names, fused and reordered for inference.

Axes: H hidden size, D head dim, F feed-forward size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.models.architecture import Architecture, collect


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. qkv: [(heads + 2 kv heads) * D, H]. qk_norm: [heads + kv heads, D].

    Each head of q and k is in rotation order: dimension i beside i + D/2, so that a rotation is one complex
    product. Scores don't change, since q and k are reordered in the same way. Norms are float32, multiplied by
    the square root of their length; see `Qwen3Model._norm`.
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
    """embedding, head: [V, H]; one tensor when they are tied and of one type: on a CPU the head is float32."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor


def fuse(
    architecture: Architecture, weights: Iterable[tuple[str, Tensor]], *, device: torch.device, dtype: torch.dtype
) -> Qwen3Weights:
    """Copies of all weights in the layout of the forward pass. Raises ValueError as `collect` does."""
    found = collect(architecture.hf_shapes(), weights)

    def copied(*names: str) -> Tensor:
        parts = [found[f"{name}.weight"].detach() for name in names]
        return torch.cat([part.to(device=device, dtype=dtype) for part in parts])

    def norm(name: str) -> Tensor:
        weight = found[f"{name}.weight"].detach().to(device=device, dtype=torch.float32)
        scaled: Tensor = weight * len(weight) ** 0.5
        return scaled

    def layer(prefix: str) -> LayerWeights:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        q_norm, k_norm = (rotation_order(norm(f"{attention}.{name}_norm"), architecture) for name in "qk")
        return LayerWeights(
            attention_norm=norm(f"{prefix}.input_layernorm"),
            qkv=torch.cat(
                [
                    rotation_order(copied(f"{attention}.q_proj", f"{attention}.k_proj"), architecture),
                    copied(f"{attention}.v_proj"),
                ]
            ),
            qk_norm=torch.cat(
                [q_norm.expand(architecture.num_heads, -1), k_norm.expand(architecture.num_kv_heads, -1)]
            ).contiguous(),
            output=copied(f"{attention}.o_proj"),
            ffn_norm=norm(f"{prefix}.post_attention_layernorm"),
            gate_up=copied(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=copied(f"{mlp}.down_proj"),
        )

    embedding = copied("model.embed_tokens")
    head = embedding if architecture.tied else copied("lm_head")
    return Qwen3Weights(
        embedding=embedding,
        layers=tuple(layer(f"model.layers.{index}") for index in range(architecture.num_layers)),
        norm=norm("model.norm"),
        head=head.float() if device.type == "cpu" else head,  # logits are float32; see `matmul_float32`
    )


def rotation_order(weight: Tensor, architecture: Architecture) -> Tensor:
    """Puts dimension i + D/2 of each head right after dimension i. weight: [heads * D, ...]."""
    halves = weight.view(-1, 2, architecture.head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
