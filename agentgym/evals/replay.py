"""A step that was trained again: its figures beside those that were recorded, and beside those of another setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentgym.evals.rescore import rescore
from agentgym.rl.advantages import Advantage, assign_advantages
from agentgym.rollout.scoring import Scorer
from agentgym.runs.records import SavedEpisode, restore_groups
from agentgym.types import Group

COMPUTED = "train/"  # by the trainer's device; all others are counted from the episodes and must be equal anywhere
TIMES = "train/time/"
SMALL = 1e-3  # differences are relative to the figure, or to this where it is smaller: a loss may cancel out to 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """recorded: None where the run has no such figure. again: None where this time there is none."""

    key: str
    recorded: float | None
    again: float | None

    @property
    def is_equal(self) -> bool:
        """Bit for bit."""
        if self.recorded is None or self.again is None:
            return False
        return self.recorded == self.again or (math.isnan(self.recorded) and math.isnan(self.again))

    @property
    def error(self) -> float:
        """The difference, relative to the larger of the two or to `SMALL`; inf where one of them is not a number."""
        if self.is_equal:
            return 0.0
        if self.recorded is None or self.again is None or not math.isfinite(self.recorded - self.again):
            return math.inf
        return abs(self.again - self.recorded) / max(abs(self.recorded), abs(self.again), SMALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAgain:
    """One step. new: figures that a run of an older version did not record."""

    step: int
    figures: tuple[Figure, ...]
    new: tuple[str, ...]

    @property
    def is_equal(self) -> bool:
        return all(figure.is_equal for figure in self.figures)

    def beyond(self, bound: float) -> list[Figure]:
        """The figures that differ by more. Only what the trainer's device computed may differ at all."""
        return [one for one in self.figures if one.error > (bound if one.key.startswith(COMPUTED) else 0.0)]

    @property
    def worst(self) -> Figure:
        return max(self.figures, key=lambda one: one.error)


def compare_step(step: int, recorded: Mapping[str, float], again: Mapping[str, float]) -> StepAgain:
    """Compares a step without its times, which differ each time."""
    computed = [key for key in recorded if key.startswith(COMPUTED) and key not in again]
    keys = [key for key in [*again, *computed] if not key.startswith(TIMES)]
    figures = [Figure(key=key, recorded=recorded.get(key), again=again.get(key)) for key in keys]
    known = tuple(one for one in figures if one.recorded is not None)
    return StepAgain(step=step, figures=known, new=tuple(one.key for one in figures if one.recorded is None))


async def judge_again(
    saved: Sequence[SavedEpisode], *, scorer: Scorer | None, advantage: Advantage, num_groups: int
) -> tuple[list[Group], list[Group]]:
    """What a step would have trained on with other rewards or another advantage: such groups, and those it would skip.

    scorer: None leaves the rewards. num_groups: those with signal are taken in the order in which they began, at most
    as many. A group with signal that the step left out was too old, and stays out.
    """
    trained, skipped = restore_groups(saved)
    too_old = {group.group_id for group in skipped if group.has_signal}
    usable = [one for one in saved if one.group_id not in too_old]
    if scorer is not None:
        scored = {id(one.saved): one.after for one in await rescore(usable, scorer)}
        usable = [replace(one, episode=scored.get(id(one), one.episode)) for one in usable]
    trained, skipped = restore_groups([replace(one, trained=True) for one in usable])
    groups = sorted(trained, key=lambda group: group.group_id)
    for group in groups:
        assign_advantages(group, advantage)
    with_signal = [group for group in groups if group.has_signal][:num_groups]
    taken = {group.group_id for group in with_signal}
    last = max(taken, default=-1) if len(with_signal) == num_groups else math.inf
    return with_signal, [group for group in groups if group.group_id not in taken and group.group_id < last]
