"""The evaluations of a run: each with its interval, and paired by task with the first that played the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentgym.evals.statistics import (
    PairedDifference,
    mean_interval,
    paired_difference,
    success_interval,
    success_share,
)
from agentgym.tables.episode_table import Table
from agentgym.tables.run import Run

MEASURED = ("success", "low", "high", "reward_mean", "reward_low", "reward_high")
CUT = "episode: cut"  # source and kind of the error
Scores = dict[str, list[float | None]]  # by task


def evaluations(run: Run) -> list[dict[str, Any]]:
    """The evaluations by step. difference: None for the first, and where fewer than two tasks are shared."""
    table = run.episodes.read()
    steps = sorted({part.step for part in table.parts if part.source == "eval"})
    stamp = tuple(value for part in table.parts if part.source == "eval" for value in part.stamp)
    records = {step: run.json(f"evals/step-{step:06d}.json") for step in steps}
    marks = tuple(hash(bool(record.get("result"))) for record in records.values())

    def make() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        first: tuple[int, tuple[Scores, Scores], Any] | None = None
        for step in steps:
            scores, rewards = scores_of(table, step), scores_of(table, step, "reward")
            known = any(score is not None for row in scores.values() for score in row)
            setup = records[step].get("setup")
            one = _one(step, scores, rewards, records[step]) | _counts(table, step)
            if first is not None and _same(first[2], setup):
                one["difference"] = _difference(first[0], first[1][known], scores if known else rewards, shares=known)
            found.append(one)
            if first is None and one["finished"]:
                first = step, (rewards, scores), setup
        return found

    result: list[dict[str, Any]] = run.kept("evaluations", (*stamp, *marks), make)
    return result


def scores_of(table: Table, step: int, column: str = "success") -> Scores:
    """Success (or reward) by task; None for an episode that infrastructure broke, and for what is unknown."""
    scores: Scores = {}
    columns = table.columns
    for row in table.part("eval", step).rows:
        counted, value = columns["outcome"][row] != "infra_error", columns[column][row]
        known = counted and value is not None
        scores.setdefault(columns["task_id"][row], []).append(float(value) if known else None)
    return scores


def _counts(table: Table, step: int) -> dict[str, int]:
    """episodes: that are counted; cut: that a limit of wall time ended, which are not."""
    rows, columns = table.part("eval", step).rows, table.columns
    return {
        "episodes": sum(columns["outcome"][row] != "infra_error" for row in rows),
        "cut": sum(columns["error"][row] == CUT for row in rows),
    }


def difference_json(difference: PairedDifference) -> dict[str, Any]:
    return {**asdict(difference), "n": difference.num_tasks, "p": difference.chance, "clear": difference.is_clear}


def _one(step: int, scores: Scores, rewards: Scores, record: Mapping[str, Any]) -> dict[str, Any]:
    result, setup = record.get("result"), record.get("setup")
    planned = setup if isinstance(setup, Mapping) else {}
    return {
        "step": step,
        "finished": isinstance(result, Mapping),
        **measured(scores, rewards),
        "tasks": len(scores),
        "planned_episodes": planned.get("num_tasks", 0) * planned.get("samples_per_task", 0) or None,
        "environment": planned.get("environment", ""),
        "difference": None,
    }


def measured(scores: Scores, rewards: Scores) -> dict[str, float | None]:
    """Success and reward with their intervals; None where unknown."""
    shares, values = list(scores.values()), list(rewards.values())
    known, scored = (any(one is not None for row in rows for one in row) for rows in (shares, values))
    low, high = success_interval(shares) if known else (None, None)
    reward_low, reward_high = mean_interval(values)
    return {
        "success": success_share(shares) if known else None,
        "low": low,
        "high": high,
        "reward_mean": success_share(values) if scored else None,
        "reward_low": reward_low,
        "reward_high": reward_high,
    }


def _same(first: Any, second: Any) -> bool:
    """Whether two evaluations play the same environment with the same seed, maybe other numbers of tasks."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return False
    return all(first.get(key) == second.get(key) for key in ("environment", "version", "seed", "greedy"))


def _difference(step: int, first: Scores, second: Scores, *, shares: bool) -> dict[str, Any] | None:
    """shares: the scores are successes, not rewards."""
    tasks = [task for task in first if task in second]
    try:
        found = paired_difference([first[task] for task in tasks], [second[task] for task in tasks], shares=shares)
    except ValueError:
        return None
    return {"to_step": step, "of": "success" if shares else "reward", **difference_json(found)}
