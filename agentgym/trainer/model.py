"""From a model's architecture to torchtitan's configuration of it."""

from __future__ import annotations

from typing import Any

from agentgym.models.architecture import Architecture
from agentgym.trainer import titan
from agentgym.trainer.attention import PackedSDPA
from agentgym.trainer.head import LogProbHead
from agentgym.trainer.setup import TrainerSetup


def titan_config(architecture: Architecture, setup: TrainerSetup, *, flex: bool) -> Any:
    """torchtitan's configuration of the model: with our log-probability head, and packed attention without flex."""
    dim, tied = architecture.dim, architecture.tied
    norm = titan.qwen3._qwen3_norm
    embedding_init = titan.qwen3._EMBEDDING_SKIP_INIT if tied else titan.qwen3._EMBEDDING_INIT
    layers = titan.qwen3._build_qwen3_layers(
        n_layers=architecture.num_layers,
        dim=dim,
        n_heads=architecture.num_heads,
        n_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        hidden_dim=architecture.ffn_dim,
        fuse_qkv=True,
        attn_backend="flex",
        rope=titan.CosSinRoPE.Config(
            dim=architecture.head_dim, max_seq_len=setup.trainer.seq_len, theta=architecture.rope_theta
        ),
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
        ),
        layers=layers,
    )
    config.norm.eps = architecture.norm_eps
    for layer in config.layers:
        if not flex:
            layer.attention.inner_attention = PackedSDPA.Config()
        for part in (layer.attention_norm, layer.ffn_norm, layer.attention.qk_norm):
            part.eps = architecture.norm_eps
    return config
