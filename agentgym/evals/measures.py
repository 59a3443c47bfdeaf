"""Figures of an evaluation beside its success: success by category of the tasks, and what the environment measures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.evals.statistics import pass_at_k, success_interval, success_share, weighted_mean
from agentgym.types import Episode, Json, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A mean over tasks with its 95% interval; None where too few tasks have the figure."""

    name: str
    value: float
    low: float | None
    high: float | None
    num_tasks: int


def read_measured(saved: Json) -> tuple[Measured, ...]:
    """The inverse of `asdict`. Raises TypeError for what another version wrote."""
    return tuple(Measured(**one) for one in saved)  # type: ignore[union-attr,arg-type]


def success_by_category(by_task: Sequence[Sequence[bool | None]], categories: Sequence[str]) -> tuple[Measured, ...]:
    """One for each `Task.category`, by name, where the tasks have several."""
    found = []
    for name in sorted(set(categories)) if len(set(categories)) > 1 else ():
        rows = [row for row, one in zip(by_task, categories, strict=True) if one == name]
        rows = [row for row in rows if any(value is not None for value in row)]
        if rows:
            low, high = success_interval(rows)
            share = success_share(rows)
            found.append(Measured(name=name or "-", value=share, low=low, high=high, num_tasks=len(rows)))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """One task's figures over its counted episodes; None is unknown.

    num: counted episodes. low, high: the 95% interval of success, over the samples. pass_at: by k, for k = 1, 2, 4, ...
    and num. seconds: an episode's mean, without waits; container_s: the mean time that an episode held its session's
    container, in seconds, verdict included.
    """

    task_id: str
    num: int
    success: float | None
    low: float | None
    high: float | None
    pass_at: dict[str, float]
    reward: float | None
    seconds: float | None
    container_s: float | None


def task_figures(
    episodes: Sequence[Sequence[Episode]], by_task: Sequence[Sequence[bool | None]]
) -> tuple[TaskFigures, ...]:
    """The figures of each task, in their order. by_task: the successes, as `EvalResult` has them."""
    found = []
    for row, successes in zip(episodes, by_task, strict=True):
        counted = [episode for episode in row if episode.outcome is not Outcome.INFRA_ERROR]
        won = [one for one in successes if one is not None]
        low, high = success_interval([[one] for one in won]) if won else (None, None)
        ks = sorted({len(won), *(2**power for power in range(len(won).bit_length()))}) if won else ()
        found.append(
            TaskFigures(
                task_id=row[0].task.task_id,
                num=len(counted),
                success=sum(won) / len(won) if won else None,
                low=low,
                high=high,
                pass_at={str(k): pass_at_k(len(won), sum(won), k) for k in ks},
                reward=_mean([episode.reward for episode in counted]),
                seconds=_mean([episode.timing_s.get("episode_s") for episode in counted]),
                container_s=_mean([episode.timing_s.get("session_s") for episode in counted]),
            )
        )
    return tuple(found)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def environment_measures(episodes: Sequence[Sequence[Episode]]) -> tuple[Measured, ...]:
    """The means of what counted episodes recorded in `info["measures"]`, in the order in which the names are met.

    A measure is a number or a bool. `info["weights"]` says how much the task's category counts for a measure, in all:
    so a benchmark's total weighs its categories as the benchmark does, however many tasks of each are played. Without
    it all tasks count alike.
    """
    scores: dict[str, dict[int, list[float]]] = {}
    weights: dict[tuple[str, int], float] = {}
    for number, row in enumerate(episodes):
        for episode in row:
            weighed = _figures(episode, "weights")
            for name, value in _figures(episode, "measures").items():
                scores.setdefault(name, {}).setdefault(number, []).append(value)
                if name in weighed:
                    weights[name, number] = weighed[name]
    found = []
    for name, rows in scores.items():
        categories = {number: episodes[number][0].task.category for number in rows}
        sizes = Counter(categories.values())
        shares = [
            weights[name, number] / sizes[category] if (name, number) in weights else 1.0
            for number, category in categories.items()
        ]
        value, low, high = weighted_mean(list(rows.values()), shares)
        found.append(Measured(name=name, value=value, low=low, high=high, num_tasks=len(rows)))
    return tuple(found)


def _figures(episode: Episode, key: str) -> Mapping[str, float]:
    """What the environment wrote, which may be anything: numbers by name are read, the rest is left out."""
    given: Any = episode.info.get(key)
    if episode.outcome is Outcome.INFRA_ERROR or not isinstance(given, Mapping):
        return {}
    numbers = {str(name): float(one) for name, one in given.items() if isinstance(one, bool | int | float)}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}
