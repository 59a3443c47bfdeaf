"""The settings of supervised fine-tuning: what is imitated, for how long, and with what."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from agentgym.actors.hosts import HostsConfig
from agentgym.actors.launchers import Launcher
from agentgym.agents import Agent
from agentgym.components import component
from agentgym.generators.config import GeneratorConfig
from agentgym.recipe import EnvConfig, EvalConfig, LoggingConfig, ModelConfig, PluginsConfig, Recipe, SandboxConfig
from agentgym.rl.losses import Loss
from agentgym.rollout.config import RolloutConfig
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.weights.config import WeightsConfig

LEARNING_RATES = ((10**9, 1e-5), (10**8, 1e-4), (10**7, 3e-4), (0, 1e-3))
"""Least number of parameters, and where to start with supervised fine-tuning of all of them by AdamW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """What is imitated: files, saved episodes, the environment's own oracle, or several of them.

    data: JSONL files, a row is {"messages": [...]}, with "tools" where there are any. episodes: folders of runs,
    whose episodes of training that earn at least min_reward are taken. oracle_tasks: of the train split, that the
    environment solves itself.
    epochs: over all of it; steps, where it is not 0, takes their place. batch_size: conversations a step.
    held_out_share: of the conversations that are not trained, but whose loss is measured.
    checkpoint_in_background: the checkpoints between the first and the last are written while the next steps go on.
    max_skipped_share: of rows without a field, of conversations that are too long or that no episode could have; such
    ones are left out and counted, and with more of them the run ends with a report.
    """

    data: tuple[str, ...] = ()
    episodes: tuple[str, ...] = ()
    min_reward: float = 1.0
    oracle_tasks: int = 0
    epochs: float = 3.0
    steps: int = 0
    batch_size: int = 32
    held_out_share: float = 0.05
    max_skipped_share: float = 0.1
    checkpoint_every: int = 100
    checkpoint_in_background: bool = True
    keep_checkpoints: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.oracle_tasks, self.checkpoint_every, self.keep_checkpoints) < 0 or self.batch_size < 1:
            raise ValueError(
                "sft.steps, oracle_tasks, checkpoint_every and keep_checkpoints can't be negative, and "
                f"sft.batch_size is at least 1; got {self.steps}, {self.oracle_tasks}, {self.checkpoint_every}, "
                f"{self.keep_checkpoints} and {self.batch_size}"
            )
        if not self.steps and not 0 < self.epochs < math.inf:
            raise ValueError(f"sft.epochs is {self.epochs:g}; give more than 0, or sft.steps")
        if math.isnan(self.min_reward):  # which no reward is below
            raise ValueError("sft.min_reward is nan; give a number")
        if not 0 <= self.held_out_share < 1 or not 0 <= self.max_skipped_share <= 1:
            raise ValueError(
                f"sft.held_out_share {self.held_out_share:g} and sft.max_skipped_share {self.max_skipped_share:g} are "
                "shares, from 0 to below 1 and from 0 to 1"
            )

    def num_steps(self, num_conversations: int) -> int:
        return self.steps or max(1, math.ceil(self.epochs * num_conversations / self.batch_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRecipe:
    """Everything that decides a run of supervised fine-tuning. env.name: empty plays nothing.

    All but `sft` are a training recipe's sections, and mean the same; agent, rewards, sandbox, rollout, generator,
    weights and eval are those of the two evaluations and of the oracle's episodes.
    """

    sft: SftConfig = SftConfig()
    model: ModelConfig = ModelConfig()
    env: EnvConfig = EnvConfig(name="")
    agent: Agent = component("agents", "chat")
    rewards: dict[str, float] = field(default_factory=dict)
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    loss: Loss = component("losses", "cross_entropy")
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
        if not (self.sft.data or self.sft.episodes or self.sft.oracle_tasks):
            raise ValueError(
                "sft has nothing to imitate: give files (sft.data), runs (sft.episodes), or sft.oracle_tasks with an "
                "environment"
            )
        if self.sft.oracle_tasks and not self.env.name:
            raise ValueError("sft.oracle_tasks needs an environment that solves them: set env.name")
        if self.loss.needs_reference:
            raise ValueError("loss needs a reference model, which runs beside reinforcement learning only")

    @property
    def patience_s(self) -> float:
        """The longest deadline of a call to a process of the training."""
        return self.trainer.step_timeout_s

    def playing(self, model: ModelConfig) -> Recipe:
        """The recipe by which another model of this run plays."""
        shared = {one.name for one in fields(Recipe)} & {one.name for one in fields(SftRecipe)}
        given = {name: getattr(self, name) for name in shared - {"model", "loss", "optimizer"}}
        return Recipe(model=model, **given)


def of_training(config: Mapping[str, object]) -> dict[str, object]:
    """The part of a run's config that a training recipe has too, without what only SFT trains with."""
    known = {one.name for one in fields(Recipe)} - {"loss", "optimizer"}
    return {name: section for name, section in config.items() if name in known}
