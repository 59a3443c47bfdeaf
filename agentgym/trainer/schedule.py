"""The learning rate over a run's steps, without a jump where a resumed run is made longer or shorter. No torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agentgym.errors import UserError
from agentgym.trainer.config import OptimizerConfig

_FILE = "schedule.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """Linear warm-up, plateau, linear decay to 0 at the end of `total_steps` (WSD, arXiv:2404.06395).

    from_step, from_factor: where it begins; above step 0 it takes over from the schedule that a run had before.
    """

    total_steps: int
    warmup_steps: int
    decay_ratio: float
    from_step: int = 0
    from_factor: float = 1.0

    @classmethod
    def of(cls, optimizer: OptimizerConfig, total_steps: int) -> RateSchedule:
        total_steps = max(1, total_steps)
        warmup_steps = min(optimizer.warmup_steps, total_steps)
        return cls(
            total_steps=total_steps,
            warmup_steps=warmup_steps,
            decay_ratio=optimizer.decay_ratio,
            from_factor=1 / max(1, warmup_steps),
        )

    def factor(self, step: int) -> float:
        """The share of optimizer.lr in the step that follows `step` finished ones."""
        decay_steps = min(round(self.total_steps * self.decay_ratio), self.total_steps - self.warmup_steps)
        start = max(self.from_step, self.total_steps - decay_steps)
        if step <= start or decay_steps <= 0:
            return self._level(step)
        return self._level(start) * max(0, self.total_steps - step) / (self.total_steps - start)

    def taking_over(self, saved: RateSchedule, step: int) -> RateSchedule:
        """What a run follows from `step` on whose checkpoint was saved with another schedule.

        The next rate is what it would have been. From there the rate warms up, holds, and falls as this schedule
        says. Raises UserError when it had fallen to 0.
        """
        if replace(self, from_step=saved.from_step, from_factor=saved.from_factor) == saved:
            return saved
        factor = saved.factor(step)
        if factor <= 0:
            raise UserError(
                f"the learning rate of this run fell to 0 at its step {saved.total_steps}, so it can't learn from step "
                f"{step} on. Resume from a checkpoint before the fall, or start a new run whose model.path is this "
                "checkpoint"
            )
        return replace(self, from_step=step, from_factor=factor)

    def save(self, folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, folder: Path) -> RateSchedule | None:
        """None for a checkpoint of an older version, which saved none."""
        path = folder / _FILE
        return cls(**json.loads(path.read_text())) if path.is_file() else None

    def _level(self, step: int) -> float:
        last = self.warmup_steps - 1
        if self.from_step >= last:
            return self.from_factor
        risen = min(1.0, (step - self.from_step) / (last - self.from_step))
        return self.from_factor + (1 - self.from_factor) * risen


class CurrentRate:
    """What the optimizers' schedulers call."""

    def __init__(self, schedule: RateSchedule) -> None:
        self.schedule = schedule

    def __call__(self, step: int) -> float:
        return self.schedule.factor(step)
