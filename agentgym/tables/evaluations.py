"""The evaluations of a run: each with its interval, and paired by task with the first that played the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentgym.evals.diagnosis import Evaluation
from agentgym.evals.shard import Shard
from agentgym.evals.statistics import PairedDifference
from agentgym.tables.episode_table import Table
from agentgym.tables.run import Run

MEASURED = ("success", "low", "high", "reward_mean", "reward_low", "reward_high")
CUT = "episode: cut"  # source and kind of the error


def evaluations(run: Run) -> list[dict[str, Any]]:
    """The evaluations by step. One that is not finished has no figures: short episodes end first.

    difference: None for the first, and where fewer than two tasks are shared.
    """
    table = run.episodes.read()
    steps = sorted({part.step for part in table.parts if part.source == "eval"})
    stamp = tuple(value for part in table.parts if part.source == "eval" for value in part.stamp)
    records = {step: run.json(f"evals/step-{step:06d}.json") for step in steps}
    marks = tuple(hash(bool(record.get("result"))) for record in records.values())

    def make() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        first: Evaluation | None = None
        for step in steps:
            one = Evaluation.of(step, records[step])
            row = _row(step, one, records[step]) | _counts(table, step)
            row["difference"] = _difference(first, one) if first and one else None
            found.append(row)
            first = first or one
        return found

    result: list[dict[str, Any]] = run.kept("evaluations", (*stamp, *marks), make)
    return result


def _row(step: int, one: Evaluation | None, record: Mapping[str, Any]) -> dict[str, Any]:
    setup = record.get("setup")
    planned = setup if isinstance(setup, Mapping) else {}
    tasks = Shard.read(planned.get("shard", "")).tasks(planned.get("num_tasks", 0))
    return {
        "step": step,
        "finished": isinstance(record.get("result"), Mapping),
        **{key: getattr(one.result, key) if one else None for key in MEASURED},
        "planned_episodes": len(tasks) * planned.get("samples_per_task", 0) or None,
        "environment": planned.get("environment", ""),
    }


def _counts(table: Table, step: int) -> dict[str, int]:
    """episodes: that are counted; cut: that a limit of wall time ended, which are not."""
    rows, columns = table.part("eval", step).rows, table.columns
    return {
        "tasks": len({columns["task_id"][row] for row in rows}),
        "episodes": sum(columns["outcome"][row] != "infra_error" for row in rows),
        "cut": sum(columns["error"][row] == CUT for row in rows),
    }


def difference_json(difference: PairedDifference) -> dict[str, Any]:
    return {**asdict(difference), "n": difference.num_tasks, "p": difference.chance, "clear": difference.is_clear}


def _difference(first: Evaluation, last: Evaluation) -> dict[str, Any] | None:
    if not last.follows(first):
        return None
    try:
        found = last.result.difference_from(first.result)
    except ValueError:
        return None
    return {"to_step": first.step, "of": last.result.measure, **difference_json(found)}
