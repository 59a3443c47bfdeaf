"""From a model's architecture to torchtitan's configuration of it."""

from __future__ import annotations

from typing import Any, Literal

from agentgym.models.architecture import Architecture


def titan_config(
    architecture: Architecture,
    *,
    attention: Literal["sdpa", "flex"],
    seq_len: int,
    logprob_chunk: int,
    temperature: float = 1.0,
) -> Any:
    """torchtitan's configuration of the model: with our log-probability head, and packed attention for sdpa.

    temperature: log-probabilities are of the softmax of logits / temperature.
    """
    from agentgym.trainer import titan
    from agentgym.trainer.attention import PackedSDPA
    from agentgym.trainer.head import LogProbHead

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
            dim=architecture.head_dim, max_seq_len=seq_len, theta=architecture.rope_theta
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
            chunk=logprob_chunk,
            temperature=temperature,
        ),
        layers=layers,
    )
    config.norm.eps = architecture.norm_eps
    for layer in config.layers:
        if attention == "sdpa":
            layer.attention.inner_attention = PackedSDPA.Config()
        for part in (layer.attention_norm, layer.ffn_norm, layer.attention.qk_norm):
            part.eps = architecture.norm_eps
    return config
