"""Everything that a trainer is built from; the client, the actor and the engine take it. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.rl.losses import Loss
from agentgym.trainer.config import DType, OptimizerConfig, TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup:
    """model_path: a Hugging Face folder. total_steps: of the learning-rate schedule. folder: for torchtitan's files.

    temperature: the sampler's, so that log-probabilities are those of the distribution that was sampled from.
    publish_dtype: what `push_weights` stores, the generators' own; checkpoints are float32.
    chat_template: the text that is exported with the weights; empty is that of model_path.
    keep_logprobs: whether the log-probabilities of a step's tokens are kept until the next, for `trained_logprobs`.
    critic: whether there is a head that learns the samples' `returns`.
    """

    model_path: str
    trainer: TrainerConfig
    optimizer: OptimizerConfig
    loss: Loss
    total_steps: int
    folder: str
    temperature: float = 1.0
    publish_dtype: DType = "float32"
    chat_template: str = ""
    keep_logprobs: bool = False
    critic: bool = False
