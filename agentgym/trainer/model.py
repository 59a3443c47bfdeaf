"""Converts a model's architecture to torchtitan's configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from agentgym.families.architecture import Architecture, RopeScaling
from agentgym.models.rope import inverse_frequencies
from agentgym.trainer import titan
from agentgym.trainer.attention import PackedFlex, PackedSDPA
from agentgym.trainer.head import LogProbHead, scoring_of
from agentgym.trainer.lora import SeparateQKV
from agentgym.trainer.mixture import mixture_config
from agentgym.trainer.setup import TrainerSetup

_DRAWN = {"weight": partial(nn.init.normal_, std=0.02), "bias": nn.init.zeros_}
"""How random weights are drawn, as Qwen3's are."""


def titan_config(architecture: Architecture, setup: TrainerSetup, *, flex: bool) -> Any:
    """torchtitan's configuration of the model: with our log-probability head, and packed attention.

    All families are its Qwen3, whose rotary pairs lie as in Hugging Face's weights; what a family lacks is left out.
    """
    dim, tied = architecture.dim, architecture.tied
    layer = partial(_layer, architecture, rope_config(architecture, setup.trainer.seq_len))
    return titan.Qwen3Model.Config(
        vocab_size=architecture.vocab_size,
        dim=dim,
        norm=_norm(dim, architecture),
        enable_weight_tying=tied,
        tok_embeddings=titan.Embedding.Config(
            num_embeddings=architecture.vocab_size,
            embedding_dim=dim,
            param_init={"weight": titan.skip_param_init if tied else _DRAWN["weight"]},
        ),
        lm_head=LogProbHead.Config(
            in_features=dim,
            out_features=architecture.vocab_size,
            param_init=_DRAWN,
            scoring=scoring_of(setup, architecture.head),
        ),
        layers=[layer(index, fused=not setup.trainer.lora.rank, flex=flex) for index in range(architecture.num_layers)],
    )


def _layer(architecture: Architecture, rope: Any, index: int, *, fused: bool, flex: bool) -> Any:
    """fused: queries, keys and values are one matrix."""
    dim = architecture.dim
    attention = titan.make_gqa_config(
        dim=dim,
        n_heads=architecture.num_heads,
        n_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        wqkv_param_init=_DRAWN,
        wo_param_init=_DRAWN,
        inner_attention=PackedFlex.Config() if flex else PackedSDPA.Config(),
        fuse_qkv=fused,
        rope=rope,
        qk_norm=_norm(architecture.head_dim, architecture) if architecture.qk_norm else None,
    )
    if not fused:
        qkv = attention.qkv_linear
        attention.qkv_linear = SeparateQKV.Config(head_dim=qkv.head_dim, wq=qkv.wq, wkv=qkv.wkv, wv=replace(qkv.wkv))
    for name in ("wqkv",) if fused else ("wq", "wkv", "wv"):
        getattr(attention.qkv_linear, name).bias = architecture.qkv_bias
    return titan.Qwen3TransformerBlock.Config(
        attention_norm=_norm(dim, architecture),
        ffn_norm=_norm(dim, architecture),
        attention=attention,
        **_feed_forward(architecture, index),
    )


def _feed_forward(architecture: Architecture, index: int) -> dict[str, Any]:
    width = architecture.ffn_dim
    if architecture.experts is not None:
        if index in architecture.experts.layers:
            return {"moe": mixture_config(architecture, index, _DRAWN)}
        width = architecture.hf_shapes()[f"model.layers.{index}.mlp.gate_proj.weight"][0]
    dense = titan.make_ffn_config(dim=architecture.dim, hidden_dim=width, w1_param_init=_DRAWN, w2w3_param_init=_DRAWN)
    return {"feed_forward": dense}


def _norm(size: int, architecture: Architecture) -> Any:
    ones = {"weight": nn.init.ones_}
    return titan.RMSNorm.Config(normalized_shape=size, eps=architecture.norm_eps, param_init=ones)


class HuggingFaceNames(titan.Qwen3StateDictAdapter):  # type: ignore[misc]  # torchtitan has no types
    """torchtitan's names of weights to Hugging Face's and back, also of the biases that Qwen3 does not have."""

    joins = False

    def __init__(self, config: Any) -> None:
        super().__init__(config, None)
        for name in "qkv":
            bias = f"layers.{{}}.attention.qkv_linear.w{name}.bias"
            self.from_hf_map[f"model.layers.{{}}.self_attn.{name}_proj.bias"] = bias

    def separated(self, name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        """As `FileNames` has it: each weight is one."""
        yield name, weight

    def joined(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        yield from weights


class ScaledRoPE(titan.CosSinRoPE):  # type: ignore[misc]  # torchtitan has no types
    """Rotary positions with scaled frequencies, which torchtitan has only for another order of the weights."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.CosSinRoPE.Config):  # type: ignore[misc]
        frequency_scaling: RopeScaling | None = None

    def _precompute_cache(self) -> Tensor:
        """Cosines, then sines, of all positions: [max_seq_len, 2 * dim]."""
        config = self.config
        frequencies = inverse_frequencies(config.theta, config.dim, config.frequency_scaling)
        angles = torch.outer(torch.arange(config.max_seq_len, dtype=torch.float), frequencies).repeat(1, 2)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rope_config(architecture: Architecture, max_len: int) -> Any:
    return ScaledRoPE.Config(
        dim=architecture.head_dim,
        max_seq_len=max_len,
        theta=architecture.rope_theta,
        frequency_scaling=architecture.rope_scaling,
    )
