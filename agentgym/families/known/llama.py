"""Llama to 3.3, and what has its architecture, such as SmolLM2."""

from __future__ import annotations

from agentgym.families.dense import Dense
from agentgym.families.family import Family

FAMILIES = (Family(model_types=("llama",), dense=Dense(rope_theta=10_000.0)),)
