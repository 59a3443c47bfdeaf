"""Everything that a trainer is built from; the client, the actor and the engine take it. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import UserError
from agentgym.families.quantized import Quantize
from agentgym.rl.losses import Loss
from agentgym.rl.losses.module import ModuleLoss
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.trainer.config import DType, OptimizerConfig, TrainerConfig
from agentgym.trainer.mismatch_config import PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSetup:
    """model_path: a Hugging Face folder. total_steps: of the learning-rate schedule. folder: for torchtitan's files.

    base_path: where adapters in the weight store belong to another model, that one's folder.

    temperature: the sampler's, so that log-probabilities are those of the distribution that was sampled from.
    publish_dtype: what `push_weights` stores, the generators' own; checkpoints are float32.
    chat_template: the text that is exported with the weights; empty is that of model_path.
    keep_logprobs: whether the log-probabilities of a step's tokens are kept until the next, for `trained_logprobs`.
    critic: whether there is a head that learns the samples' `returns`.
    quantize: how the matrices beside adapters are stored.
    warm_up: whether it compiles a step before it is ready, and vLLM on the same GPU waits for that.
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
    base_path: str = ""
    quantize: Quantize = "none"
    warm_up: bool = False

    def __post_init__(self) -> None:
        """Raises UserError for limits of trainer.mismatch that the loss can't go with."""
        limits = self.trainer.mismatch
        for part in PARTS:
            if limits.limit(part, "correct") is not None and _has_own_weights(self.loss):
                raise UserError(
                    f"trainer.mismatch.{part}.correct is set and the loss has weights against the sampler of its own "
                    "(loss.correction), which would count twice; set loss.correction: none, or leave the limit out"
                )
        if limits.changes_losses and isinstance(self.loss, ModuleLoss):
            raise UserError(
                "trainer.mismatch has limits to correct or mask tokens and the loss is a module, which gives one "
                "number for all tokens; leave these limits out, or choose a loss that gives one for each"
            )


def _has_own_weights(loss: Loss) -> bool:
    return isinstance(loss, PolicyLoss) and loss.correction != "none"
