"""How far an evaluation is, and what its episodes say so far: `agentgym status` of one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentgym.evals.play import EvalSetup
from agentgym.evals.statistics import success_interval, success_share, unrecorded
from agentgym.runs.episode_index import row_of
from agentgym.runs.evaluations import ENDED, read_record
from agentgym.runs.files import read_json_lines
from agentgym.runs.folder import RunFolder, RunStatus

FEWEST = 3  # episodes of this start, before their pace says when the rest will have ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """An evaluation of the weights after `step`. finished: whether it has a result.

    ended: of `planned` episodes; broken: of them, by infrastructure; retries: how often an episode was begun again.
    success: of those so far, with its 95% interval [low, high] over num_tasks tasks; None where it is unknown. It is
    biased while the evaluation goes on: short episodes end first. left_s: seconds until the rest has ended at the pace
    so far; None where it is unknown, or nothing goes on.
    """

    step: int
    environment: str
    version: int
    finished: bool
    planned: int
    ended: int
    broken: int
    retries: int
    num_tasks: int
    success: float | None
    low: float | None
    high: float | None
    left_s: float | None


def progress(folder: RunFolder, step: int) -> Progress:
    """Reads what is there. Raises UserError for files that another version wrote."""
    record = read_record(folder, step)
    setup = EvalSetup.from_mapping(record["setup"])  # type: ignore[arg-type]
    path, part = folder.episode_file(step, evaluation=True), folder.evaluation_file(step, ".part.jsonl")
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    times: list[float] = []
    for line in read_json_lines(path if path.is_file() else part) if path.is_file() or part.is_file() else ():
        row = row_of(line)
        rows[row["group"], row["index"]] = row  # one that broke is played again
        times.append(float(line.get(ENDED) or 0.0))  # type: ignore[arg-type]
    scores = _scores([*rows.values()])
    known = any(score is not None for row in scores for score in row)
    low, high = success_interval(scores) if known else (None, None)
    planned = len(setup.numbers) * setup.samples_per_task
    status = folder.status()
    return Progress(
        step=step,
        environment=setup.environment,
        version=setup.version,
        finished=bool(record.get("result")),
        planned=planned,
        ended=len(rows),
        broken=sum(row["outcome"] == "infra_error" for row in rows.values()),
        retries=sum(row["retries"] for row in rows.values()),
        num_tasks=sum(any(score is not None for score in row) for row in scores),
        success=success_share(scores) if known else None,
        low=low,
        high=high,
        left_s=_left_s([one for one in times if one >= status.time], planned - len(rows))
        if status.status is RunStatus.RUNNING
        else None,
    )


def _scores(rows: list[dict[str, Any]]) -> list[list[bool | None]]:
    """By task."""
    counted = [row for row in rows if row["outcome"] != "infra_error"]
    missing = unrecorded(row["success"] for row in counted)
    found: dict[int, list[bool | None]] = {}
    for row in counted:
        found.setdefault(row["group"], []).append(missing if row["success"] is None else row["success"])
    return [*found.values()]


def _left_s(times: list[float], left: int) -> float | None:
    """times: at which episodes have ended, since the evaluation was started or resumed."""
    if len(times) < FEWEST or not left:
        return None
    waits = [later - earlier for earlier, later in pairwise(times)]
    return left * sum(waits) / len(waits)
