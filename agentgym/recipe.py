"""A whole run's settings: one dataclass per component, built from YAML and `--key value`."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentgym.generators.config import GeneratorConfig
from agentgym.rl.config import GrpoConfig, LoopConfig
from agentgym.rollout.config import RolloutConfig
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.types import Json
from agentgym.weights.config import WeightsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """path: a Hugging Face folder or hub name; `builtin:tiny` is the policy that ships with the package.

    random_weights: keep the architecture and tokenizer, draw the weights anew (for tests of size).
    chat_template: empty is the tokenizer's own; `builtin:chatml`, or the path of a Jinja file.
    """

    path: str = "builtin:tiny"
    chat_template: str = ""
    random_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """options: keyword arguments of the environment."""

    name: str = "code_exec"
    options: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """name: `auto` takes the first by rank that is available, an interpreter only where every task allows it.

    options: of the sandbox that is taken (docs/sandboxes.md).
    """

    name: str = "auto"
    options: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """The held-out comparison at a run's end."""

    tasks: int = 128
    samples_per_task: int = 2
    seed: int = 1_000_003
    at_end: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """sinks: plugins that get the metrics besides the run's own files."""

    runs_dir: str = "runs"
    sinks: tuple[str, ...] = ("tensorboard",)
    save_episodes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsConfig:
    disabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides a run. rewards: weights by name; empty takes the environment's own."""

    model: ModelConfig = ModelConfig()
    env: EnvConfig = EnvConfig()
    rewards: dict[str, float] = field(default_factory=dict)
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    loop: LoopConfig = LoopConfig()
    grpo: GrpoConfig = GrpoConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    generator: GeneratorConfig = GeneratorConfig()
    weights: WeightsConfig = WeightsConfig()
    eval: EvalConfig = EvalConfig()
    logging: LoggingConfig = LoggingConfig()
    plugins: PluginsConfig = PluginsConfig()
