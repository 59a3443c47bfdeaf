"""Qwen2 and Qwen2.5, and Qwen3: dense."""

from __future__ import annotations

from agentgym.families.dense import Dense
from agentgym.families.family import Family

_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
FAMILIES = (
    Family(model_types=("qwen3",), dense=Dense(qk_norm=True), tiny=_ROPE),
    Family(model_types=("qwen2",), dense=Dense(qkv_bias=True), tiny=_ROPE),
)
