"""The evaluations of a run: each with its interval, and paired by task with the first that played the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentgym.evals.statistics import PairedDifference, paired_difference, success_interval, success_share
from agentgym.tables.episode_table import Table
from agentgym.tables.run import Run

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
        first: tuple[int, Scores, Any] | None = None
        for step in steps:
            scores = scores_of(table, step)
            setup = records[step].get("setup")
            one = _one(step, scores, records[step]) | {"cut": _num_cut(table, step)}
            if first is not None and _same(first[2], setup):
                one["difference"] = _difference(first[0], first[1], scores)
            found.append(one)
            if first is None and one["finished"]:
                first = step, scores, setup
        return found

    result: list[dict[str, Any]] = run.kept("evaluations", (*stamp, *marks), make)
    return result


def scores_of(table: Table, step: int) -> Scores:
    """Success by task; None for an episode that infrastructure broke."""
    scores: Scores = {}
    columns = table.columns
    for row in table.part("eval", step).rows:
        counted = columns["outcome"][row] != "infra_error"
        scores.setdefault(columns["task_id"][row], []).append(float(columns["success"][row]) if counted else None)
    return scores


def _num_cut(table: Table, step: int) -> int:
    """Episodes that a limit of wall time ended, which are not counted."""
    return sum(table.columns["error"][row] == CUT for row in table.part("eval", step).rows)


def difference_json(difference: PairedDifference) -> dict[str, Any]:
    return {**asdict(difference), "n": difference.num_tasks, "p": difference.chance, "clear": difference.is_clear}


def _one(step: int, scores: Scores, record: Mapping[str, Any]) -> dict[str, Any]:
    known = [value for row in scores.values() for value in row if value is not None]
    low, high = success_interval(list(scores.values())) if known else (None, None)
    result, setup = record.get("result"), record.get("setup")
    planned = setup if isinstance(setup, Mapping) else {}
    return {
        "step": step,
        "finished": isinstance(result, Mapping),
        "success": success_share(list(scores.values())) if known else None,
        "low": low,
        "high": high,
        "tasks": len(scores),
        "episodes": len(known),
        "planned_episodes": planned.get("num_tasks", 0) * planned.get("samples_per_task", 0) or None,
        "environment": planned.get("environment", ""),
        "difference": None,
    }


def _same(first: Any, second: Any) -> bool:
    """Whether two evaluations play the same environment with the same seed, maybe other numbers of tasks."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return False
    return all(first.get(key) == second.get(key) for key in ("environment", "version", "seed", "greedy"))


def _difference(step: int, first: Scores, second: Scores) -> dict[str, Any] | None:
    tasks = [task for task in first if task in second]
    try:
        found = paired_difference([first[task] for task in tasks], [second[task] for task in tasks], shares=True)
    except ValueError:
        return None
    return {"to_step": step, **difference_json(found)}
