"""The loop's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """max_staleness: in weight versions; 0 is synchronous RL.

    deterministic: the run is a function of its recipe, asynchronous or not: what ends first changes nothing, so a
    resumed run is the run that was not stopped, to the last bit. Each group is sampled by the weights that it began
    with. For the native engine on a CPU.
    checkpoint_in_background: the checkpoints between the first and the last are copied to the host's memory, and
    written while the next steps go on.
    """

    steps: int = 40
    groups_per_step: int = 16
    group_size: int = 8
    max_staleness: int = 1
    max_refills: int = 8  # groups without signal that one step may skip, times groups_per_step
    checkpoint_every: int = 20
    checkpoint_in_background: bool = True
    keep_checkpoints: int = 0  # the newest, and the best by held-out success where that is measured; 0 is all
    check_sync_every: int = 10  # steps between comparisons of the generators with the trainer; 0 is none
    eval_every: int = 0  # steps between held-out checks while training; 0 is none
    eval_tasks: int = 64
    seed: int = 0
    deterministic: bool = False

    @property
    def num_slots(self) -> int:
        """How many groups are played or wait for their step, at most."""
        return (self.max_staleness + 1) * self.groups_per_step

    def __post_init__(self) -> None:
        if min(self.steps, self.groups_per_step) < 1 or self.group_size < 2:
            raise ValueError(
                f"loop.steps {self.steps} and loop.groups_per_step {self.groups_per_step} must be at least 1, "
                f"loop.group_size {self.group_size} at least 2: an advantage compares episodes of one group"
            )
        if self.max_refills < 1:
            raise ValueError(
                f"loop.max_refills is {self.max_refills}; give at least 1: a step skips up to "
                "max_refills * groups_per_step groups without signal"
            )
        spans = {
            name: getattr(self, name)
            for name in ("max_staleness", "checkpoint_every", "keep_checkpoints", "check_sync_every", "eval_every")
        }
        if min(spans.values()) < 0:
            raise ValueError(f"none of these fields of loop can be negative: {spans}")
