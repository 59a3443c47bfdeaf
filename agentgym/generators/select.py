"""The generator engines of ours, and which one `auto` takes for a model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from agentgym.errors import UserError
from agentgym.families.registry import read_config, read_dense
from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.engine import GeneratorEngine
from agentgym.models.device import pick_device
from agentgym.types import Json

DECIDED = {
    "model": "model.path",
    "tokenizer": "model.path",
    "skip_tokenizer_init": "tokens that go in and out as ids",
    "generation_config": "rollout's sampling",
    "dtype": "generator.dtype",
    "max_model_len": "generator.max_model_len",
    "max_num_seqs": "generator.max_batch",
    "gpu_memory_utilization": "generator.engine.gpu_memory_utilization",
    "enforce_eager": "generator.engine.enforce_eager",
    "tensor_parallel_size": "generator.engine.tensor_parallel",
    "enable_sleep_mode": "generator.engine.sleep",
    "data_parallel_size": "generator.replicas",
    "logprobs_mode": "the distribution that is sampled from, which the trainer compares with",
    "worker_extension_cls": "the weight updates",
    "enable_log_requests": "the run's own logs",
    "disable_log_stats": "the run's own metrics",
    "use_tqdm_on_load": "the run's own output",
}
"""vLLM's engine arguments that are no one's to set, and what they follow from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeEngineConfig(EngineConfig):
    """Dense Qwen3, Qwen2 and Llama in plain torch, on a CPU or a GPU."""

    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        from agentgym.generators.native.engine import NativeEngine

        return NativeEngine(generator, model_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersEngineConfig(EngineConfig):
    """Any causal language model that transformers knows, on a CPU or a GPU."""

    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        from agentgym.generators.transformers.engine import TransformersEngine

        return TransformersEngine(generator, model_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineConfig(EngineConfig):
    """vLLM, in a process of its own."""

    gpu_memory_utilization: float = 0.6
    """The share of a GPU's memory that vLLM takes; lower it where a trainer shares the GPU."""
    enforce_eager: bool = False
    """Capture no CUDA graphs: a quicker start and less memory, but slower sampling."""
    tensor_parallel: int = 1
    """GPUs that one replica's model is split over."""
    sleep: bool = False
    """Give the memory to the trainer while it steps, but for vLLM's graphs; for a GPU that both share in a synchronous
    run."""
    join_together: bool = True
    """Let requests wait for each other where beginning holds up those that run, in sum as long as that does; false
    begins each as soon as a slot is free."""
    options: dict[str, Json] = field(default_factory=dict)
    """More of vLLM's engine arguments, by their names there (quantization, kv_cache_dtype, speculative_config and so
    on); those that other settings decide are refused."""

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1 or self.tensor_parallel < 1:
            raise ValueError(
                f"gpu_memory_utilization {self.gpu_memory_utilization:g} is a share above 0, up to 1, and "
                f"tensor_parallel {self.tensor_parallel} at least 1"
            )
        for name in self.options:
            if name in DECIDED:
                raise ValueError(f"options.{name} can't be set: it follows from {DECIDED[name]}")

    @property
    def gpus_per_replica(self) -> int:
        return self.tensor_parallel

    @property
    def sleeps(self) -> bool:
        return self.sleep

    @property
    def joins_together(self) -> bool:
        return self.join_together

    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        if not vllm_is_installed():
            raise UserError(
                "generator.engine is 'vllm' but vllm is not installed. Install it (GPU: `pip install "
                "vllm==0.32.0`; CPU: see docs/services.md), or use generator.engine=native."
            )
        from agentgym.generators.vllm.engine import VllmEngine

        return VllmEngine(
            generator,
            model_path,
            gpu_memory_utilization=self.gpu_memory_utilization,
            enforce_eager=self.enforce_eager,
            tensor_parallel_size=self.tensor_parallel,
            enable_sleep_mode=self.sleep,
            join_together=self.join_together,
            **self.options,
        )


def at_once(engine: EngineConfig) -> EngineConfig:
    """The same, whose requests begin as soon as a slot is free."""
    return replace(engine, join_together=False) if isinstance(engine, VllmEngineConfig) else engine


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoEngine(EngineConfig):
    """vLLM where it is installed and there is a GPU, else the native engine, for what that refuses transformers."""

    def choose(self, generator: GeneratorConfig, model_path: str) -> EngineConfig:
        """Returns the engine's settings with its defaults. Imports no engine. Raises UserError for a folder without a
        readable config.json.
        """
        if vllm_is_installed() and generator.device != "cpu" and pick_device("auto", "generator") == "cuda":
            return VllmEngineConfig()
        return TransformersEngineConfig() if why_not_native(model_path) else NativeEngineConfig()

    def build(self, generator: GeneratorConfig, model_path: str) -> GeneratorEngine:
        return self.choose(generator, model_path).build(generator, model_path)


def settle_engine(generator: GeneratorConfig, model_path: str, note: Callable[[str], None]) -> GeneratorConfig:
    """The same with the engine that `auto` stands for; `note` is called where that is the slow one."""
    if not isinstance(generator.engine, AutoEngine):
        return generator
    engine = generator.engine.choose(generator, model_path)
    if isinstance(engine, TransformersEngineConfig):
        note(f"the generator engine is transformers, which is slow: {why_not_native(model_path)}")
    return replace(generator, engine=engine)


def why_not_native(model_path: str) -> str:
    """What the native engine says to a model that it refuses; "" for one that it computes."""
    read_config(Path(model_path))  # raises
    try:
        read_dense(Path(model_path))
    except UserError as error:
        return str(error)
    return ""


def vllm_is_installed() -> bool:
    return importlib.util.find_spec("vllm") is not None
