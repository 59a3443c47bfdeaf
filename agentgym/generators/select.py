"""The generator engines of ours: vLLM where it is installed with a GPU, else the native one."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass

from agentgym.errors import UserError
from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.engine import GeneratorEngine
from agentgym.models.device import pick_device


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeEngineConfig(EngineConfig):
    """Dense Qwen3 in plain torch, on a CPU or a GPU."""

    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        from agentgym.generators.native.engine import NativeEngine

        return NativeEngine(generator, model_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineConfig(EngineConfig):
    """gpu_memory_utilization: the share of a GPU's memory that vLLM takes. enforce_eager: no CUDA graphs."""

    gpu_memory_utilization: float = 0.6
    enforce_eager: bool = False

    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        if not vllm_is_installed():
            raise UserError(
                "generator.engine is 'vllm' but vllm is not installed. Install it (GPU: `pip install "
                "vllm==0.32.0`; CPU: see docs/generators.md), or use generator.engine=native."
            )
        from agentgym.generators.vllm.engine import VllmEngine

        return VllmEngine(generator, model_path, **asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoEngine(EngineConfig):
    """vLLM with its defaults where it is installed and there is a GPU, else the native engine."""

    def choose(self, generator: GeneratorConfig) -> EngineConfig:
        """Imports neither engine."""
        if vllm_is_installed() and generator.device != "cpu" and pick_device("auto", "generator") == "cuda":
            return VllmEngineConfig()
        return NativeEngineConfig()

    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        return self.choose(generator).build(generator, model_path)


def vllm_is_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None
