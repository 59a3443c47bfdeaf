"""Everything that a training run needs to continue, and how it is restored from torch's distributed checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load

from agentgym.errors import UserError
from agentgym.trainer.build import TrainedModel
from agentgym.trainer.checkpoint import read_manifest
from agentgym.trainer.lora import is_adapter
from agentgym.trainer.parallel import Ranks, expected_warnings_off
from agentgym.trainer.schedule import RateSchedule


def load_checkpoint(folder: str, built: TrainedModel, ranks: Ranks) -> int:
    """Restore everything and return the step. Collective. The number of ranks may differ from that of the save.

    Raises UserError when the checkpoint can't be read; `checkpoint.check` finds damage earlier.
    """
    step = read_manifest(folder).step
    state = state_of(built, step)
    with expected_warnings_off():
        try:
            load(state, checkpoint_id=folder, no_dist=not ranks.sharded)
        except Exception as error:  # the reader raises errors of many kinds
            raise UserError(f"the checkpoint {folder} could not be loaded: {error}") from error
        built.model.load_state_dict(state["model"], strict=not any(map(is_adapter, state["model"])))
        if step:
            built.optimizers.load_state_dict(state["optimizer"])
        else:
            for optimizer in built.optimizers:
                optimizer.state.clear()
        if saved := RateSchedule.read(Path(folder)):
            built.rate.schedule = built.rate.schedule.taking_over(saved, step)
        _restore_rate(built, state["schedule"])
    torch.set_rng_state(state["random"])
    return int(state["step"])


def state_of(built: TrainedModel, step: int) -> dict[str, Any]:
    """What a checkpoint holds. Tensors are the live ones.

    Nothing of the optimizer before the first step: its moments are zeros then, twice as large as the weights.
    """
    return {
        "model": _trained(built.model.state_dict()),
        **({"optimizer": built.optimizers.state_dict()} if step else {}),
        "schedule": built.schedule.state_dict(),
        "step": step,
        "random": torch.get_rng_state(),
        **({} if built.critic is None else {"critic": built.critic.state_dict()}),
    }


def _trained(weights: dict[str, Any]) -> dict[str, Any]:
    """What training changes: all, or the adapters."""
    return {name: weight for name, weight in weights.items() if is_adapter(name)} or weights


def set_rate(built: TrainedModel, rate: float) -> None:
    """Another rate of the plateau for the next steps."""
    for scheduler in built.schedule.schedulers:
        scheduler.base_lrs = [rate] * len(scheduler.base_lrs)
    with expected_warnings_off():
        _restore_rate(built, built.schedule.state_dict())


def _restore_rate(built: TrainedModel, state: dict[str, Any]) -> None:
    """The position in the schedule, and the next step's rate in the optimizers, which hold that of the save."""
    built.schedule.load_state_dict(state)
    for scheduler in built.schedule.schedulers:
        for group, rate in zip(scheduler.optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
