"""The host's memory for checkpoints that are written while steps go on: a copy of all that is saved."""

from __future__ import annotations

from agentgym.families.architecture import Architecture
from agentgym.planning.machine import GIB, Machine
from agentgym.planning.memory import adapter_parameters
from agentgym.planning.placement import USABLE, PlannedProcess, peak
from agentgym.trainer.config import TrainerConfig

SAVED_BYTES = 12  # of a trained parameter: itself and AdamW's moments, in float32
EXPORTED_BYTES = 4  # of each parameter, in the first process


def copy_gib(model: Architecture, trainer: TrainerConfig) -> float:
    """Memory of the copies of all ranks together; each saves what no other does."""
    trained = adapter_parameters(model, trainer.lora) if trainer.lora.rank else model.num_parameters
    return (SAVED_BYTES * trained + EXPORTED_BYTES * model.num_parameters) / GIB


def no_room(model: Architecture, trainer: TrainerConfig, procs: tuple[PlannedProcess, ...], machine: Machine) -> str:
    """Why checkpoints are saved while training stands still; empty where the host has room for copies.

    procs: of the placement; those on GPUs count nothing here.
    """
    if machine.memory_gib is None:
        return ""
    copies, others = copy_gib(model, trainer), peak([proc for proc in procs if proc.gpu is None])
    if copies + others <= USABLE * machine.memory_gib:
        return ""
    return (
        f"checkpoints  training stands still while they are written: a copy of {copies:.1f} GiB and {others:.1f} for "
        f"all else do not fit in the host's {machine.memory_gib:.1f}"
    )
