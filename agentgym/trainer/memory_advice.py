"""Which of the recipe's fields take less memory, for the report of a trainer that ran out of it."""

from __future__ import annotations

from typing import get_args

from agentgym.trainer.config import Recompute, TrainerConfig


def fields_to_lower(config: TrainerConfig) -> str:
    """One sentence without its full stop, with the values that the fields have."""
    names = ("rows_per_microbatch", "seq_len", "logprob_chunk")
    lower = [f"trainer.{name} ({getattr(config, name)})" for name in names if getattr(config, name) > 1]
    if config.device != "cpu":
        lower.append("generator.engine.gpu_memory_utilization if vLLM has the same GPU")
    order = get_args(Recompute)
    stronger = order[order.index(config.activation_checkpoint) + 1 :]
    recompute = ""
    if stronger:
        recompute = f", set trainer.activation_checkpoint ({config.activation_checkpoint}) to {' or '.join(stronger)}"
    if config.reduce_gradients == "last" and config.procs > config.tensor_parallel:
        recompute += ", set trainer.reduce_gradients (last) to each"
    if config.gather_weights == "once":
        recompute += ", set trainer.gather_weights (once) to each"
    return f"Lower {', '.join(lower)}{recompute}, or shard over more trainer.procs ({config.procs})"
