"""The loop's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """The loop's settings."""

    steps: int = 30
    """Training steps of the whole run; a resumed run may be given more."""
    groups_per_step: int = 16
    """Groups that one step trains on, each of one task."""
    group_size: int = 8
    """Episodes of a group; an advantage compares them, so give at least 2."""
    max_staleness: int = 1
    """Versions that the weights of a sampled token may be older than those that it trains; 0 is synchronous RL, more
    keeps generators and trainer busy at the same time."""
    sync_interval: int = 1
    """Steps between publications of the weights, at most max_staleness + 1, since staleness counts the trainer's steps;
    raise it where an update costs more than samples of older weights."""
    max_refills: int = 8
    """Groups without signal that one step may skip, as a multiple of groups_per_step, before it trains on fewer."""
    checkpoint_every: int = 20
    """Steps between checkpoints; 0 saves the first and the last alone."""
    checkpoint_in_background: bool = True
    """Copy checkpoints to the host's memory and write them beside the next steps; the last is waited for."""
    keep_checkpoints: int = 0
    """The newest checkpoints that are kept, besides the best by held-out success (eval_every), or by held-out reward
    where success is unknown; 0 keeps all."""
    check_sync_every: int = 10
    """Steps between comparisons of the generators' log-probabilities with the trainer's; 0 is never."""
    eval_every: int = 0
    """Steps between held-out checks while training; 0 is never."""
    eval_tasks: int = 64
    """Held-out tasks of each of these checks."""
    seed: int = 0
    """Decides the order of the tasks and what is sampled; give another to repeat a run independently."""
    deterministic: bool = False
    """Make the run a function of its recipe, asynchronous or not: what ends first changes nothing, and a resumed run
    equals one that was not stopped, to the last bit. For the native engine on a CPU; it is slower."""

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
        spans = {
            name: getattr(self, name)
            for name in ("max_staleness", "checkpoint_every", "keep_checkpoints", "check_sync_every", "eval_every")
        }
        if min(spans.values()) < 0:
            raise ValueError(f"none of these fields of loop can be negative: {spans}")
        if not 1 <= self.sync_interval <= self.max_staleness + 1:
            older = (
                f", or raise loop.max_staleness to {self.sync_interval - 1}, the age of the samples that the last step "
                "before an update trains"
            )
            raise ValueError(
                f"loop.sync_interval is {self.sync_interval} and loop.max_staleness {self.max_staleness}: give 1 to "
                f"{self.max_staleness + 1}{older if self.sync_interval > 1 else ''}"
            )
        if self.sync_interval > 1 and self.deterministic:
            raise ValueError(
                f"loop.sync_interval is {self.sync_interval}: loop.deterministic needs 1, since a resumed run "
                "publishes its weights when it begins"
            )
        if self.max_refills < 1:
            raise ValueError(
                f"loop.max_refills is {self.max_refills}; give at least 1: a step skips up to "
                "max_refills * groups_per_step groups without signal"
            )
