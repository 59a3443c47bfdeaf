"""A run at a glance: a row in the list of runs, and the whole of its first page."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentgym.evals.shard import Shard
from agentgym.runs.changes import read_changes
from agentgym.runs.curve import HELD_OUT, HELD_OUT_REWARD, REWARD, SUCCESS
from agentgym.runs.evaluations import held_out_metric
from agentgym.runs.folder import RunStatus
from agentgym.runs.liveness import Liveness, liveness
from agentgym.runs.metrics import MetricsRow
from agentgym.tables.diagnosed import diagnosis
from agentgym.tables.evaluations import evaluations
from agentgym.tables.run import Run
from agentgym.tables.steering import steering
from agentgym.yaml import flat

PHASES = ("generate", "sandbox", "train", "reference", "publish")
SPARK = 60
MAX_SOURCES = 20


def run_row(run: Run) -> dict[str, Any]:
    """A row of `/api/runs`. Reads no episode."""
    (status, reason, changed), rows = run.status(), run.log.read()
    last = rows[-1].metrics if rows else {}
    comparison, sandbox = run.json("comparison.json"), run.json("sandbox.json")
    replaced: Any = sandbox.get("before", [])  # the run was resumed with another sandbox
    measured, tasks = _last_result(run)
    held_out, held_out_reward = (measured.get(key) for key in (HELD_OUT, HELD_OUT_REWARD))
    return {
        "id": run.location.id,
        "root": run.location.root.key,
        "name": run.location.name,
        "kind": run.kind,
        "status": status,
        "reason": reason,
        "changed": changed,
        "environment": run.field("env.name", ""),
        "model": run.field("model.path", ""),
        "step": rows[-1].step if rows else 0,
        "steps": run.field("loop.steps"),
        "reward": last.get(REWARD),
        "success": last.get(SUCCESS),
        "held_out": held_out,
        "held_out_reward": held_out_reward,
        "tasks": tasks,
        "gain": _gain(comparison, "reward" if held_out is None else "success", tasks),
        "sandbox": " after ".join(map(str, [sandbox.get("backend", ""), *reversed(replaced)])),
        "unsafe": sandbox.get("unsafe") is True,
        "spark": _spark(rows),
    }


def run_json(run: Run, *, can_steer: bool) -> dict[str, Any]:
    """`/api/runs/{run}`."""
    rows, table = run.log.read(), run.episodes.read()
    steps: dict[str, list[int]] = {"train": [], "eval": []}
    for part in table.parts:
        steps[part.source].append(part.step)
    sums = {phase: math.fsum(_finite(row, f"time/{phase}_s") for row in rows) for phase in PHASES}
    wall_s = math.fsum(_finite(row, "time/step_s") for row in rows)
    busy_s = math.fsum(_finite(row, "time/compute_share") * _finite(row, "time/step_s") for row in rows)
    row = run_row(run)
    return {
        **row,
        "diagnosis": diagnosis(run),
        "processes": asdict(processes(run)),
        "first_step": rows[0].step if rows else None,
        "last_step": rows[-1].step if rows else None,
        "time": {"started": _started(rows), "changed": row["changed"], "wall_s": wall_s or None},
        "time_shares": [
            {"phase": phase, "seconds": sums[phase], "share": sums[phase] / wall_s if wall_s else None}
            for phase in PHASES
        ],
        "busy_share": busy_s / wall_s if wall_s else None,
        "infra": infra_json(run),
        "evaluations": evaluations(run),
        "checkpoints": run.folder.checkpoint_steps(),
        "episodes": {**steps, "count": len(table)},
        "sandbox_info": run.json("sandbox.json"),
        "config": _config(run),
        "steering": steering(run, able=can_steer),
    }


def processes(run: Run) -> Liveness:
    """What they are doing, or why one does nothing; empty for a run that does not go on."""
    return liveness(run.path) if run.status()[0] == RunStatus.RUNNING else Liveness()


def infra_json(run: Run) -> dict[str, Any]:
    """Episodes that were left out because something broke, by what broke."""
    table = run.episodes.read()
    columns = table.columns
    broken: dict[str, dict[str, Any]] = {}
    total = 0
    for number, error in enumerate(columns["error"]):
        if columns["outcome"][number] != "infra_error":
            continue
        total += 1
        source, _, kind = error.rpartition(": ")
        one = broken.setdefault(error, {"source": source, "kind": kind, "count": 0, "example": "", "message": ""})
        one["count"] += 1
        one |= {"example": table.key(number), "message": columns["error_text"][number]}
    rows = run.log.read()
    counts = {
        name: int(math.fsum(_finite(row, f"rollout/{name}") for row in rows))
        for name in ("episodes", "infra_errors", "unsupported", "prompt_too_long", "retries")
    }
    ordered = sorted(broken.values(), key=lambda one: -one["count"])
    return {**counts, "saved": len(table), "saved_broken": total, "by_source": ordered[:MAX_SOURCES]}


def _started(rows: Sequence[MetricsRow]) -> float | None:
    return rows[0].time - _finite(rows[0], "time/step_s") if rows else None


def _last_result(run: Run) -> tuple[dict[str, float], int | None]:
    """Of the newest evaluation that is finished, and how many tasks it played."""
    for step in reversed(run.folder.episode_steps(evaluation=True)):
        record = run.json(f"evals/step-{step:06d}.json")
        if found := held_out_metric(record.get("result")):
            setup: Any = record.get("setup")
            if not isinstance(setup, Mapping) or not isinstance(setup.get("num_tasks"), int):
                return found, None
            return found, len(Shard.read(setup.get("shard", "")).tasks(setup["num_tasks"]))
    return {}, None


def _gain(comparison: Mapping[str, Any], measure: str, tasks: int | None) -> dict[str, Any] | None:
    """None also where other tasks were played since, as `eval --every-checkpoint` does: the figures beside it do."""
    difference, last = comparison.get("difference"), comparison.get("last")
    if not isinstance(difference, Mapping):
        return None
    if isinstance(last, Mapping) and tasks is not None and last.get("num_tasks", tasks) != tasks:
        return None
    return {
        "of": measure,
        "n": difference.get("num_tasks"),
        **{key: difference.get(key) for key in ("mean", "low", "high")},
    }


def _spark(rows: Sequence[MetricsRow]) -> list[float]:
    values = [row.metrics[SUCCESS] for row in rows if SUCCESS in row.metrics]
    if len(values) > SPARK:
        edges = [round(i * len(values) / SPARK) for i in range(SPARK + 1)]
        values = [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    return [round(value, 4) for value in values if math.isfinite(value)]


def _config(run: Run) -> dict[str, dict[str, Any]]:
    sources, changed = run.json("config.sources.json"), {one.setting: one for one in read_changes(run.path)}
    found = {key: {"value": value, "source": sources.get(key)} for key, value in flat(run.config()).items()}
    now = {key: {"value": one.value, "source": f"changed after step {one.step}"} for key, one in changed.items()}
    return found | now


def _finite(row: MetricsRow, key: str) -> float:
    value = row.metrics.get(key, 0.0)
    return value if math.isfinite(value) else 0.0
