"""What the trainer does once an update instead of with each microbatch, where the memory is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agentgym.planning.memory import is_sharded
from agentgym.trainer.config import TrainerConfig


def sparing(trainer: TrainerConfig | None) -> TrainerConfig | None:
    """The configuration with `auto` resolved for the least memory."""
    if trainer is None:
        return None
    reduce = "each" if trainer.reduce_gradients == "auto" else trainer.reduce_gradients
    gather = "each" if trainer.gather_weights == "auto" else trainer.gather_weights
    return replace(trainer, reduce_gradients=reduce, gather_weights=gather)


def settle_accumulation(trainer: TrainerConfig, fits: Callable[[TrainerConfig], bool]) -> TrainerConfig:
    """Resolves `auto`, if FSDP shards. Gathering once comes first: it spares as much and takes less memory.

    fits: whether the trainer does, beside everybody else.
    """
    if not is_sharded(trainer):
        return trainer
    reduces = trainer.procs > trainer.tensor_parallel  # one rank keeps whole gradients in any case
    if trainer.gather_weights == "auto":
        least = replace(trainer, reduce_gradients="each") if trainer.reduce_gradients == "auto" else trainer
        once = fits(replace(least, gather_weights="once"))
        trainer = replace(trainer, gather_weights="once" if once else "each")
    if trainer.reduce_gradients == "auto":
        last = not reduces or fits(replace(trainer, reduce_gradients="last"))
        trainer = replace(trainer, reduce_gradients="last" if last else "each")
    return trainer
