"""Chooses the generator's engine: vLLM where it is installed with a GPU, else our own."""

from __future__ import annotations

import importlib.util
from typing import Literal

from agentgym.errors import UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import GeneratorEngine


def engine_name(config: GeneratorConfig) -> Literal["native", "vllm"]:
    """The engine that `build_engine` would take; imports neither. Raises UserError where vllm is missing."""
    installed = importlib.util.find_spec("vllm") is not None
    if config.engine == "vllm" and not installed:
        raise UserError(
            "generator.engine is 'vllm' but vllm is not installed. Install it (GPU: `pip install "
            "vllm==0.32.0`; CPU: see docs/generators.md), or use generator.engine=native."
        )
    if config.engine == "auto":
        return "vllm" if installed and config.device != "cpu" and _has_gpu() else "native"
    return config.engine


def build_engine(config: GeneratorConfig, model_path: str) -> GeneratorEngine:
    """An engine for the model in a local Hugging Face folder; call its `start` next.

    Raises UserError for a model, device or engine that can't be had.
    """
    if engine_name(config) == "vllm":
        from agentgym.generators.vllm.engine import VllmEngine

        return VllmEngine(config, model_path)
    from agentgym.generators.native.engine import NativeEngine

    return NativeEngine(config, model_path)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
