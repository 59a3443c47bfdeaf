"""Mixtures of experts: Qwen3-MoE, OLMoE and gpt-oss (in bfloat16 or float32, not in MXFP4)."""

from __future__ import annotations

from agentgym.families.dense import Dense
from agentgym.families.family import Family, Router

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
FAMILIES = (
    Family(
        model_types=("qwen3_moe",),
        mixture=Dense(qk_norm=True),
        adapter_targets=_ATTENTION,
        router=Router(module="mlp.gate", scores="all"),
        tiny={"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    ),
    Family(
        model_types=("olmoe",),
        adapter_targets=_ATTENTION,
        router=Router(module="mlp.gate", scores="all"),
        tiny={"num_experts": 4, "num_experts_per_tok": 2},
    ),
    Family(
        model_types=("gpt_oss",),
        masks="given",
        attention="eager",
        adapter_targets=_ATTENTION,
        router=Router(module="mlp.router", scores="chosen"),
        tiny={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
)
