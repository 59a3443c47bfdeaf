"""One evaluation as its page shows it, finished or not: figures with intervals, by kind of task, and task by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentgym.errors import UserError
from agentgym.evals.measures import success_by_category
from agentgym.evals.play import pass_shares
from agentgym.evals.shard import Shard
from agentgym.evals.statistics import TaskScores, mean_interval, success_interval, success_share, unrecorded
from agentgym.evals.summary import EvaluationSummary, summary_of
from agentgym.runs.episode_index import FileIndex
from agentgym.tables.problems import Problem
from agentgym.tables.run import Run
from agentgym.types import COUNTED_APART


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTask:
    """rows: of its episodes among the columns, by sample. successes, rewards: None for an episode not counted."""

    number: int
    task_id: str
    difficulty: int
    category: str
    rows: tuple[int, ...]
    successes: tuple[bool | None, ...]
    rewards: tuple[float | None, ...]


def evaluation_json(run: Run, step: int) -> dict[str, Any]:
    """`/api/runs/{run}/evaluations/{step}`. Raises Problem for an unknown or unreadable one."""
    part = run.episodes.read().part("eval", step)
    record = run.json(f"evals/step-{step:06d}.json")

    def make() -> dict[str, Any]:
        index = _with_successes(part.index)
        tasks = played_tasks(index)
        return {
            **_head(run, step, record, index, tasks),
            "all": measured(tasks),
            "by": [{"name": name, "rows": rows} for name, rows in _by(tasks).items()],
            "stops": _stops(index),
            "left_out": _left_out(index),
            "retries": sum(index.columns.get("retries", ())),
            "tasks": [_task(one, index.columns) for one in tasks],
        }

    others = (bool(record.get("result")), run.prices(), repr(run.json("notes.json")))
    stamp = (*part.stamp, hash(others))
    found: dict[str, Any] = run.kept(f"evaluation {step}", stamp, make)
    return {**found, "status": run.status()[0]}


def _with_successes(index: FileIndex) -> FileIndex:
    """The index, in which an episode without a recorded success is a failure where others have one."""
    said = index.columns.get("success", [])
    if (missing := unrecorded(said)) is None:
        return index
    return replace(index, columns={**index.columns, "success": [missing if one is None else one for one in said]})


def played_tasks(index: FileIndex) -> list[PlayedTask]:
    """The tasks of an evaluation's episodes, by their numbers."""
    columns, groups = index.columns, dict[int, list[int]]()
    for row in range(len(index.locations)):
        groups.setdefault(columns["group"][row], []).append(row)
    found = []
    for number, rows in sorted(groups.items()):
        rows.sort(key=columns["index"].__getitem__)
        counted = [row if columns["outcome"][row] != "infra_error" else None for row in rows]
        found.append(
            PlayedTask(
                number=number,
                task_id=columns["task_id"][rows[0]],
                difficulty=columns["difficulty"][rows[0]],
                category=columns["category"][rows[0]],
                rows=tuple(rows),
                successes=tuple(None if row is None else columns["success"][row] for row in counted),
                rewards=tuple(None if row is None else columns["reward"][row] for row in counted),
            )
        )
    return found


def measured(tasks: Sequence[PlayedTask]) -> dict[str, Any]:
    """Success with its interval, or the reward where no success is known, and pass@k.

    value, low, high: None where nothing was counted. of: success or reward.
    """
    successes, rewards = [one.successes for one in tasks], [one.rewards for one in tasks]
    of = "reward" if _any(rewards) and not _any(successes) else "success"
    scores: TaskScores = rewards if of == "reward" else successes
    low, high = (None, None)
    if _any(scores):
        low, high = success_interval(scores) if of == "success" else mean_interval(scores)
    passed = pass_shares(successes, [0] * len(tasks)) if of == "success" and _any(scores) else ()
    return {
        "of": of,
        "value": success_share(scores) if _any(scores) else None,
        "low": low,
        "high": high,
        "tasks": sum(any(score is not None for score in row) for row in scores),
        "episodes": sum(score is not None for row in scores for score in row),
        "pass_at": [{key: getattr(one, key) for key in ("k", "value", "low", "high")} for one in passed],
    }


def _head(
    run: Run, step: int, record: Mapping[str, Any], index: FileIndex, tasks: Sequence[PlayedTask]
) -> dict[str, Any]:
    setup, result = record.get("setup"), record.get("result")
    if not isinstance(setup, Mapping):
        raise Problem("broken", f"the evaluation of step {step} does not say what it plays")
    try:
        summary = summary_of(
            run.folder, step, setup, result or _so_far(index, tasks), index, within=[run.location.root.path]
        )
        planned = len(Shard.read(setup.get("shard", "")).tasks(setup["num_tasks"])) * setup["samples_per_task"]
    except (UserError, KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        why = str(error) if isinstance(error, UserError) else repr(error)
        raise Problem("broken", f"the evaluation of step {step} could not be read: {why}"[:500]) from None
    return {
        "run": run.location.id,
        "name": run.location.name,
        "step": step,
        "finished": bool(result),
        "planned": planned,
        "measures": (result or {}).get("measures", []),
        "played": len(index.locations),
        "summary": _without_folder(summary),
    }


def _without_folder(summary: EvaluationSummary) -> dict[str, Any]:
    return {key: value for key, value in summary.to_mapping().items() if key not in ("folder", "run_dir")}


def _so_far(index: FileIndex, tasks: Sequence[PlayedTask]) -> dict[str, Any]:
    """What the result of an unfinished evaluation would be if it ended now."""
    successes, rewards = [one.successes for one in tasks], [one.rewards for one in tasks]
    known, scored = _any(successes), _any(rewards)
    low, high = success_interval(successes) if known else (None, None)
    reward_low, reward_high = mean_interval(rewards)
    left_out = Counter(_kind(index.columns, row) for one in tasks for row in one.rows)
    apart = {
        f"num_{name}": left_out[kind]
        for name, kind in zip(("unsupported", "too_long", "cut"), COUNTED_APART, strict=True)
    }
    return {
        "success": success_share(successes) if known else None,
        "low": low,
        "high": high,
        "by_task": successes,
        "reward_mean": success_share(rewards) if scored else None,
        "reward_low": reward_low,
        "reward_high": reward_high,
        "num_episodes": left_out[None],
        "num_infra_errors": sum(left_out.values()) - left_out[None] - sum(apart.values()),
        **apart,
        "pass_at": [asdict(one) for one in pass_shares(successes, [0] * len(tasks))] if known else [],
        "by_category": [asdict(one) for one in success_by_category(successes, [one.category for one in tasks])],
    }


def _kind(columns: Mapping[str, Sequence[Any]], row: int) -> str | None:
    """Why an episode is left out; None for one that is counted."""
    return columns["error"][row].partition(": ")[2] if columns["outcome"][row] == "infra_error" else None


def _by(tasks: Sequence[PlayedTask]) -> dict[str, list[dict[str, Any]]]:
    """Tasks by difficulty and by category, where there are several."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in ("difficulty", "category"):
        kinds = [getattr(one, name) for one in tasks]
        several = sorted(set(kinds))
        if len(several) > 1:
            found[name] = [
                {"kind": kind, **measured([task for task, one in zip(tasks, kinds, strict=True) if one == kind])}
                for kind in several
            ]
    return found


def _stops(index: FileIndex) -> list[dict[str, Any]]:
    """How the counted episodes ended, with the share of successes among them."""
    columns = index.columns
    found: dict[str, list[bool | None]] = {}
    for row in range(len(index.locations)):
        if columns["outcome"][row] != "infra_error":
            found.setdefault(columns["stop"][row] or "unknown", []).append(columns["success"][row])
    return [
        {"stop": stop, "episodes": len(won), "successes": None if None in won else sum(map(bool, won))}
        for stop, won in sorted(found.items(), key=lambda item: -len(item[1]))
    ]


def _left_out(index: FileIndex) -> list[dict[str, Any]]:
    """Episodes that are not counted, by what ended them. n: the number of an example among the step's episodes."""
    columns, found = index.columns, dict[str, dict[str, Any]]()
    for row in range(len(index.locations)):
        if columns["outcome"][row] == "infra_error":
            why = columns["error"][row]
            one = found.setdefault(why, {"why": why, "episodes": 0, "n": row + 1, "text": columns["error_text"][row]})
            one["episodes"] += 1
    return sorted(found.values(), key=lambda one: -one["episodes"])


def _task(task: PlayedTask, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """value: its success, or its reward where no success is known; solved: None then."""
    successes = [one for one in task.successes if one is not None]
    rewards = [one for one in task.rewards if one is not None]
    scores = successes or rewards
    return {
        "task": task.number,
        "task_id": task.task_id,
        "difficulty": task.difficulty,
        "category": task.category,
        "samples": len(task.rows),
        "counted": len(successes or rewards),
        "solved": sum(successes) if successes else None,
        "value": sum(scores) / len(scores) if scores else None,
        "reward": sum(rewards) / len(rewards) if rewards else None,
        "tokens": sum(columns["tokens"][row] for row in task.rows) / len(task.rows),
        "retries": sum(columns["retries"][row] for row in task.rows),
    }


def _any(rows: Sequence[Sequence[object]]) -> bool:
    return any(score is not None for row in rows for score in row)
