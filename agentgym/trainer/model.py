"""Converts a model's architecture to torchtitan's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from agentgym.families.architecture import Architecture, RopeScaling
from agentgym.models.rope import inverse_frequencies
from agentgym.trainer import titan
from agentgym.trainer.attention import PackedSDPA
from agentgym.trainer.head import LogProbHead
from agentgym.trainer.lora import SeparateQKV
from agentgym.trainer.setup import TrainerSetup


def titan_config(architecture: Architecture, setup: TrainerSetup, *, flex: bool) -> Any:
    """torchtitan's configuration of the model: with our log-probability head, and packed attention without flex.

    All families are its Qwen3, whose rotary pairs lie as in Hugging Face's weights; what a family lacks is left out.
    """
    dim, tied, fused = architecture.dim, architecture.tied, not setup.trainer.lora.rank
    norm = titan.qwen3._qwen3_norm
    embedding_init = titan.qwen3._EMBEDDING_SKIP_INIT if tied else titan.qwen3._EMBEDDING_INIT
    layers = titan.qwen3._build_qwen3_layers(
        n_layers=architecture.num_layers,
        dim=dim,
        n_heads=architecture.num_heads,
        n_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        hidden_dim=architecture.ffn_dim,
        fuse_qkv=fused,
        attn_backend="flex",
        rope=rope_config(architecture, setup.trainer.seq_len),
    )
    config = titan.Qwen3Model.Config(
        vocab_size=architecture.vocab_size,
        dim=dim,
        norm=norm(dim),
        enable_weight_tying=tied,
        tok_embeddings=titan.Embedding.Config(
            num_embeddings=architecture.vocab_size, embedding_dim=dim, param_init=embedding_init
        ),
        lm_head=LogProbHead.Config(
            in_features=dim,
            out_features=architecture.vocab_size,
            param_init=titan.qwen3._LINEAR_INIT,
            chunk=setup.trainer.logprob_chunk,
            temperature=setup.temperature,
            entropy_gradient=setup.loss.needs_entropy,
            compiled=setup.trainer.compile,
        ),
        layers=layers,
    )
    config.norm.eps = architecture.norm_eps
    for layer in config.layers:
        attention = layer.attention
        if not flex:
            attention.inner_attention = PackedSDPA.Config()
        if not architecture.qk_norm:
            attention.qk_norm = None
        if not fused:
            qkv = attention.qkv_linear
            attention.qkv_linear = SeparateQKV.Config(
                head_dim=qkv.head_dim, wq=qkv.wq, wkv=qkv.wkv, wv=replace(qkv.wkv)
            )
        for name in ("wqkv",) if fused else ("wq", "wkv", "wv"):
            getattr(attention.qkv_linear, name).bias = architecture.qkv_bias
        for part in (layer.attention_norm, layer.ffn_norm, attention.qk_norm):
            if part is not None:
                part.eps = architecture.norm_eps
    return config


class HuggingFaceNames(titan.Qwen3StateDictAdapter):  # type: ignore[misc]  # torchtitan has no types
    """torchtitan's names of weights to Hugging Face's and back, also of the biases that Qwen3 does not have."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, None)
        for name in "qkv":
            bias = f"layers.{{}}.attention.qkv_linear.w{name}.bias"
            self.from_hf_map[f"model.layers.{{}}.self_attn.{name}_proj.bias"] = bias


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
