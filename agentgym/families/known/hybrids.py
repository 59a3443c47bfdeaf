"""Decoders with layers that carry state along a row: each sample needs a row of its own."""

from __future__ import annotations

from agentgym.families.family import Family

FAMILIES = (
    Family(
        model_types=("qwen3_5_text",),
        packs="row",
        tiny={
            "num_hidden_layers": 4,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4,
        },
    ),
    Family(
        model_types=("lfm2",),
        packs="row",
        adapter_targets=("q_proj", "k_proj", "v_proj", "out_proj", "in_proj", "w1", "w2", "w3"),
        tiny={"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
    ),
    Family(
        model_types=("falcon_h1",),
        packs="row",
        tiny={
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_expand": 1,
            "lm_head_multiplier": 0.5,
        },
    ),
)
