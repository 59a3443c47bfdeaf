"""A run's checkpoints on the same held-out tasks: what of it is measured already, and the curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym.evals.play import EvalResult, EvalSetup
from agentgym.evals.statistics import TaskScores, mean_interval, success_interval, success_share
from agentgym.runs.evaluations import read_record
from agentgym.runs.folder import RunFolder
from agentgym.types import Json

BASE = ("environment", "version", "seed", "greedy")
"""Of an EvalSetup what two evaluations have in common that play the same episodes, as far as both go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """success: None where it is unknown, or nothing was counted. [low, high]: the 95% interval of `value`."""

    step: int
    success: float | None
    low: float | None
    high: float | None
    reward: float | None
    num_tasks: int
    num_episodes: int

    @property
    def value(self) -> float | None:
        """What the curve shows: success, or the reward where that is unknown."""
        return self.reward if self.success is None else self.success


def measured(folder: RunFolder, step: int, setup: EvalSetup, weights: str) -> Point | None:
    """What a finished evaluation of the step says of the setup's tasks and samples; None where none covers them.

    weights: identify the checkpoint's; an evaluation of others does not count.
    """
    record = read_record(folder, step)
    saved, found = record.get("setup"), record.get("result")
    if not isinstance(saved, Mapping) or not isinstance(found, Mapping) or not _covers(saved, setup):
        return None
    if record.get("weights") not in ("", weights):
        return None
    result = EvalResult.from_mapping(found)
    known, rewards = _first(result.by_task, setup), _first(result.reward_by_task, setup)
    has_success = result.success is not None and _num(known) > 0
    low, high = success_interval(known) if has_success else mean_interval(rewards)
    return Point(
        step=step,
        success=success_share(known) if has_success else None,
        low=low,
        high=high,
        reward=success_share(rewards) if _num(rewards) else None,
        num_tasks=len(known),
        num_episodes=max(_num(known), _num(rewards)),
    )


def plays_other(folder: RunFolder, step: int, setup: EvalSetup) -> str:
    """What another evaluation of the step has otherwise than the setup, so that the two can't be one; else empty."""
    saved = read_record(folder, step).get("setup")
    if not isinstance(saved, Mapping):
        return ""
    own = setup.to_mapping()
    return next((f"{key} {saved.get(key)!r}, not {own[key]!r}" for key in BASE if saved.get(key) != own[key]), "")


def _covers(saved: Mapping[str, Json], setup: EvalSetup) -> bool:
    own = setup.to_mapping()
    tasks, samples = saved.get("num_tasks"), saved.get("samples_per_task")
    if not isinstance(tasks, int) or not isinstance(samples, int):
        return False
    same = all(saved.get(key) == own[key] for key in BASE)
    same_tasks = tasks > setup.num_tasks or (tasks == setup.num_tasks and saved.get("data_hash") == setup.data_hash)
    return same and same_tasks and samples >= setup.samples_per_task


def _first(rows: TaskScores, setup: EvalSetup) -> list[Sequence[float | None]]:
    return [row[: setup.samples_per_task] for row in rows[: setup.num_tasks]]


def _num(rows: TaskScores) -> int:
    return sum(value is not None for row in rows for value in row)
