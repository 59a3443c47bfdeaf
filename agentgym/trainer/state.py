"""Saves and restores everything that a training run needs to continue, through torch's distributed checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from agentgym.errors import UserError
from agentgym.models.architecture import Architecture
from agentgym.runs.files import publish
from agentgym.trainer.build import TrainedModel
from agentgym.trainer.checkpoint import read_manifest, write_manifest
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.lora import is_adapter
from agentgym.trainer.parallel import Ranks, expected_warnings_off
from agentgym.trainer.schedule import RateSchedule


def save_checkpoint(
    folder: str,
    built: TrainedModel,
    ranks: Ranks,
    *,
    step: int,
    architecture: Architecture,
    lora: LoraConfig,
    also: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write to FOLDER.partial and rename at the end. Collective; the folder must be shared by all ranks.

    also: called on rank 0 with the folder, to write a file of its own.
    """
    target = Path(folder)
    partial = target.with_name(target.name + ".partial")
    if ranks.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    ranks.barrier()
    with expected_warnings_off():
        save(_state(built, step), checkpoint_id=partial, no_dist=not ranks.sharded)
    ranks.barrier()
    if ranks.rank == 0:
        built.rate.schedule.save(partial)
        also(partial)
        write_manifest(partial, step=step, architecture=architecture, lora=lora)
        publish(partial, target)
    ranks.barrier()


def load_checkpoint(folder: str, built: TrainedModel, ranks: Ranks) -> int:
    """Restore everything and return the step. Collective. The number of ranks may differ from that of the save.

    Raises UserError when the checkpoint can't be read; `checkpoint.check` finds damage earlier.
    """
    step = read_manifest(folder).step
    state = _state(built, step)
    with expected_warnings_off():
        try:
            load(state, checkpoint_id=folder, no_dist=not ranks.sharded)
        except Exception as error:  # the reader raises errors of many kinds
            raise UserError(f"the checkpoint {folder} could not be loaded: {error}") from error
        built.model.load_state_dict(state["model"], strict=not any(map(is_adapter, state["model"])))
        built.optimizers.load_state_dict(state["optimizer"])
        if saved := RateSchedule.read(Path(folder)):
            built.rate.schedule = built.rate.schedule.taking_over(saved, step)
        _restore_rate(built, state["schedule"])
    torch.set_rng_state(state["random"])
    return int(state["step"])


def _state(built: TrainedModel, step: int) -> dict[str, Any]:
    return {
        "model": _trained(built.model.state_dict()),
        "optimizer": _optimizer_state(built),
        "schedule": built.schedule.state_dict(),
        "step": step,
        "random": torch.get_rng_state(),
        **({} if built.critic is None else {"critic": built.critic.state_dict()}),
    }


def _trained(weights: dict[str, Any]) -> dict[str, Any]:
    """What training changes: all, or the adapters."""
    return {name: weight for name, weight in weights.items() if is_adapter(name)} or weights


def _restore_rate(built: TrainedModel, state: dict[str, Any]) -> None:
    """The position in the schedule, and the next step's rate in the optimizers, which hold that of the save."""
    built.schedule.load_state_dict(state)
    for scheduler in built.schedule.schedulers:
        for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate


def _optimizer_state(built: TrainedModel) -> dict[str, Any]:
    """Its moments and counters; created first, as zeros, if no step was done."""
    fresh = not any(optimizer.state for optimizer in built.optimizers)
    state: dict[str, Any] = built.optimizers.state_dict()
    if fresh:  # torchtitan makes them by a step without gradient, which counts as one
        for optimizer in built.optimizers:
            for of_parameter in optimizer.state.values():
                of_parameter["step"].zero_()
    return state
