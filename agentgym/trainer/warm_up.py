"""Has everything compiled that a step computes, before the first batch is there: while generators start."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.machine import release_memory
from agentgym.trainer.packing_probe import document
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample


def warm_up(engine: TrainingEngine, setup: TrainerSetup) -> None:
    """Computes a gradient of random tokens and drops it; the weights stay. Nothing where nothing is compiled.

    Collective. The GPU's memory that a step needs for a time is given back. Raises torch's error where there is not
    enough.
    """
    if not setup.trainer.compile:
        return
    samples = first_batch(setup.trainer, read_architecture(Path(setup.model_path)).vocab_size)
    with suppress(UserError, ValueError):  # a loss, or a router, that refuses them gets its own in the first step
        if setup.trainer.updates_per_step > 1:
            engine.logprobs(samples, True)
        engine.forward_backward(samples)
    engine.clear_gradients()
    release_memory()


def first_batch(trainer: TrainerConfig, vocab_size: int) -> list[Sample]:
    """At least a full microbatch for each rank, with two documents a row: the mask of one alone would be another.

    The second half of each document is trained.
    """
    one = document("first", trainer.seq_len // 2, vocab_size)
    length = len(one.token_ids)
    zeros, asked = (0.0,) * length, length // 2
    one = replace(
        one,
        loss_mask=zeros[:asked] + (1.0,) * (length - asked),
        versions=(-1,) * asked + (0,) * (length - asked),
        ref_logprobs=zeros,
    )
    rows = trainer.rows_per_microbatch * trainer.procs // (trainer.tensor_parallel * trainer.context_parallel)
    return [replace(one, sample_id=f"first-{n}") for n in range(2 * rows)]
