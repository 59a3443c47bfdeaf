"""Decoders that the trainer engine transformers computes, with documents of one row kept apart by masks."""

from __future__ import annotations

from agentgym.families.family import Family

_NO_GATE = ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")
_WINDOWS = {"sliding_window": 6, "num_hidden_layers": 6}
FAMILIES = (
    Family(model_types=("mistral",), tiny={"sliding_window": 6}),
    Family(model_types=("ministral3",)),
    Family(
        model_types=("phi3",),
        adapter_targets=("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
        tiny={"partial_rotary_factor": 1.0},
    ),
    Family(model_types=("smollm3",), tiny={"no_rope_layer_interval": 2}),
    Family(model_types=("olmo2",)),
    Family(model_types=("olmo3",), tiny={"sliding_window": 6}),
    Family(model_types=("gemma3_text",), tiny={**_WINDOWS, "tie_word_embeddings": True}),
    Family(
        model_types=("gemma4_text",),
        tiny={
            **_WINDOWS,
            "global_head_dim": 8,
            "vocab_size_per_layer_input": 96,
            "hidden_size_per_layer_input": 8,
            "final_logit_softcapping": 30.0,
        },
    ),
    Family(model_types=("granite",), tiny={"logits_scaling": 2.0}),
    Family(
        model_types=("glm4",), adapter_targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj")
    ),
    Family(model_types=("cohere2",), tiny={"sliding_window": 6, "num_hidden_layers": 4, "logit_scale": 0.25}),
    Family(model_types=("exaone4",), tiny={"sliding_window": 6, "sliding_window_pattern": 2}),
    Family(model_types=("hunyuan_v1_dense",)),
    Family(model_types=("apertus",), adapter_targets=_NO_GATE),
    Family(model_types=("nemotron",), adapter_targets=_NO_GATE),
    Family(model_types=("seed_oss",)),
)
