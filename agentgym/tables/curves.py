"""Curves with their intervals, and where each step's time went."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from agentgym.evals.statistics import success_interval
from agentgym.runs.changes import read_changes, value_of
from agentgym.runs.metrics import MetricsRow
from agentgym.tables.episode_table import Part, Table
from agentgym.tables.evaluations import MEASURED, evaluations
from agentgym.tables.problems import Problem
from agentgym.tables.run import Run
from agentgym.tables.summary import PHASES

HELD_OUT, HELD_OUT_REWARD, DIFFERENCE = "eval/success", "eval/reward", "eval/difference"
SUCCESS = "rollout/success_mean"
NO_SIGNAL, TRUNCATED = "view/no_signal_share", "view/truncated_share"
CUT = ("max_turns", "turn_tokens", "episode_tokens", "time")
MAX_POINTS = 2000
LABELS: dict[str, tuple[str, str, str]] = {  # label, unit, what is better
    HELD_OUT: ("held-out success", "share", "up"),
    HELD_OUT_REWARD: ("held-out reward", "reward", "up"),
    DIFFERENCE: ("held-out success against the first evaluation, paired by task", "share", "up"),
    SUCCESS: ("training success", "share", "up"),
    "rollout/reward_mean": ("training reward", "reward", "up"),
    "sft/loss": ("loss", "nats a token", "down"),
    "sft/held_out_loss": ("loss of what is held out", "nats a token", "down"),
    "train/loss": ("loss", "", ""),
    "train/mismatch_kl": ("KL to the sampler", "nats", ""),
    "train/kl_ref": ("KL to the reference", "nats", ""),
    "train/entropy": ("entropy", "nats", ""),
    "train/grad_norm": ("gradient norm", "", ""),
    "loop/staleness_mean": ("staleness, mean", "versions", ""),
    "loop/staleness_max": ("staleness, largest", "versions", ""),
    NO_SIGNAL: ("groups without signal", "share", "down"),
    TRUNCATED: ("episodes cut by a limit", "share", "down"),
    "rollout/infra_errors": ("infrastructure errors", "episodes", "down"),
    "rollout/completion_tokens_mean": ("sampled tokens of an episode", "tokens", ""),
    "time/step_s": ("time of a step", "s", "down"),
    "generator/tokens_per_s": ("sampling rate", "tokens/s", "up"),
}
UNITS = {"_s": "s", "_share": "share", "_mib": "MiB", "_bytes": "bytes"}


def curves_json(run: Run, keys: Sequence[str], max_points: int) -> dict[str, Any]:
    """`/api/runs/{run}/curves`. Raises Problem for a name that no step has."""
    rows = run.log.read()
    names = {key for row in rows for key in row.metrics}
    made = {key: curve for key, make in _MADE.items() if (curve := make(run)) is not None}
    known = sorted(names | made.keys())
    if unknown := [key for key in keys if key not in known]:
        raise Problem.unknown("metric", unknown[0], known)
    chosen = keys or [key for key in LABELS if key in names or key in made]
    found = [made.get(key) or _logged(run, key) for key in chosen]
    changes = [{"step": one.step, "text": str(one)} for one in read_changes(run.path)]
    return {"names": known, "curves": [_thinned(one, max_points) for one in found], "changes": changes}


def time_json(run: Run, max_points: int) -> dict[str, Any]:
    """`/api/runs/{run}/time`: of each step, or of as many neighbours as leave max_points."""
    rows = [row for row in run.log.read() if "time/step_s" in row.metrics]
    size = max(1, math.ceil(len(rows) / max_points))
    parts = [rows[first : first + size] for first in range(0, len(rows), size)]

    def mean(part: Sequence[Any], key: str) -> float:
        return math.fsum(row.metrics.get(key, 0.0) for row in part) / len(part)

    return {
        "phases": PHASES,
        "steps": [part[0].step for part in parts],
        "step_s": [mean(part, "time/step_s") for part in parts],
        "columns": {phase: [mean(part, f"time/{phase}_s") for part in parts] for phase in PHASES},
        "idle_s": [math.fsum(map(_idle_s, part)) / len(part) for part in parts],
        "steps_a_point": size,
    }


def _idle_s(row: MetricsRow) -> float:
    return row.metrics["time/step_s"] * (1 - row.metrics.get("time/compute_share", 1.0))


def lanes_json(run: Run, first: int, last: int) -> dict[str, Any]:
    """`/api/runs/{run}/lanes`: of each step the groups, with the versions that sampled them."""
    table = run.episodes.read()
    parts = [part for part in table.parts if part.source == "train" and first <= part.step <= last]
    return {
        "bound": _bound(run),
        "steps": [{"step": part.step, "trained_at": part.step - 1, "groups": _groups(table, part)} for part in parts],
        "last_step": max((part.step for part in table.parts if part.source == "train"), default=None),
    }


def _groups(table: Table, part: Part) -> list[dict[str, Any]]:
    columns = table.columns
    found: dict[int, list[int]] = {}
    for row in part.rows:
        found.setdefault(columns["group"][row], []).append(row)
    shown = []
    for group, rows in found.items():
        tokens: dict[int, int] = {}
        for row in rows:
            for version, count in columns["versions"][row]:
                tokens[version] = tokens.get(version, 0) + count
        stale = [columns["staleness"][row] for row in rows if columns["staleness"][row] is not None]
        start, won = columns["start_version"][rows[0]], [columns["success"][row] for row in rows]
        shown.append(
            {
                "group": group,
                "start": start,
                "oldest": min(tokens, default=start),
                "newest": max(tokens, default=start),
                "staleness": max(stale, default=None),
                "trained": any(columns["trained"][row] for row in rows),
                "wait_steps": part.step - 1 - start,
                "tokens": sorted(tokens.items()),
                "episodes": len(rows),
                "success": None if None in won else sum(won) / len(won),
            }
        )
    return shown


def _logged(run: Run, key: str) -> dict[str, Any]:
    points = [(row.step, row.metrics[key]) for row in run.log.read() if key in row.metrics]
    one = _curve(key, [step for step, _ in points], [_known(value) for _, value in points])
    if key == "loop/staleness_max":
        one["bound"] = _bound(run)
    return one


def _bound(run: Run) -> object:
    """The newest bound on staleness."""
    return value_of(run.config(), read_changes(run.path), "loop.max_staleness")


def _curve(key: str, steps: list[int], values: list[float | None], **more: Any) -> dict[str, Any]:
    label, unit, better = LABELS.get(key, (key, next((u for end, u in UNITS.items() if key.endswith(end)), ""), ""))
    return {
        "key": key,
        "label": label,
        "unit": unit,
        "area": key.partition("/")[0],
        "better": better,
        "steps": steps,
        "values": values,
        "low": None,
        "high": None,
        "n": None,
        "n_of": "",
        "bound": None,
        "thinned": False,
        **more,
    }


def _held_out(run: Run, key: str = HELD_OUT) -> dict[str, Any] | None:
    value, low, high = MEASURED[:3] if key == HELD_OUT else MEASURED[3:]
    found = [one for one in evaluations(run) if one[value] is not None and (key == HELD_OUT or one["success"] is None)]
    if not found:
        return None
    steps, values, lows, highs, tasks = ([one[name] for one in found] for name in ("step", value, low, high, "tasks"))
    return _curve(key, steps, values, low=lows, high=highs, n=tasks, n_of="tasks")


def _difference(run: Run) -> dict[str, Any] | None:
    found = [one for one in evaluations(run) if one["difference"] and one["finished"]]
    if not found:
        return None
    moves = [one["difference"] for one in found]
    columns = {name: [move[name] for move in moves] for name in ("low", "high", "n")}
    values = [move["mean"] for move in moves]
    curve = _curve(DIFFERENCE, [one["step"] for one in found], values, **columns, n_of="tasks")
    if moves[-1]["of"] == "reward":
        curve |= {"label": curve["label"].replace("success", "reward"), "unit": "reward"}
    return curve


def _success(run: Run) -> dict[str, Any] | None:
    """Its interval is over the step's groups, where their episodes were saved."""
    points = {row.step: row.metrics[SUCCESS] for row in run.log.read() if SUCCESS in row.metrics}
    if not points:
        return None
    spread = _by_part(run, "success", _success_of)
    found = {step: spread.get(step, (None, None, None)) for step in points}
    low, high, count = ([found[step][place] for step in points] for place in range(3))
    return _curve(SUCCESS, [*points], [*map(_known, points.values())], low=low, high=high, n=count, n_of="groups")


def _success_of(table: Table, part: Part) -> tuple[float | None, float | None, int | None]:
    columns = table.columns
    groups: dict[int, list[float]] = {}
    for row in part.rows:
        if columns["outcome"][row] != "infra_error" and columns["success"][row] is not None:
            groups.setdefault(columns["group"][row], []).append(float(columns["success"][row]))
    if not groups:
        return None, None, 0
    return *success_interval(list(groups.values())), len(groups)


def _no_signal(run: Run) -> dict[str, Any] | None:
    """Skipped groups among all groups that were collected for a step."""
    steps, values, count = [], [], []
    for row in run.log.read():
        trained, skipped = row.metrics.get("loop/groups"), row.metrics.get("loop/skipped_groups")
        if trained is not None and skipped is not None and trained + skipped:
            steps.append(row.step)
            values.append(skipped / (trained + skipped))
            count.append(int(trained + skipped))
    return _curve(NO_SIGNAL, steps, [*values], n=count, n_of="groups") if steps else None


def _truncated(run: Run) -> dict[str, Any] | None:
    found = _by_part(run, "truncated", _truncated_of)
    steps = sorted(found)
    if not steps:
        return None
    return _curve(
        TRUNCATED, steps, [found[step][0] for step in steps], n=[found[step][1] for step in steps], n_of="episodes"
    )


def _truncated_of(table: Table, part: Part) -> tuple[float, int]:
    stops = table.columns["stop"][part.first : part.first + part.count]
    return sum(stop in CUT for stop in stops) / max(1, len(stops)), len(stops)


_MADE: dict[str, Callable[[Run], dict[str, Any] | None]] = {
    HELD_OUT: _held_out,
    HELD_OUT_REWARD: partial(_held_out, key=HELD_OUT_REWARD),
    DIFFERENCE: _difference,
    SUCCESS: _success,
    NO_SIGNAL: _no_signal,
    TRUNCATED: _truncated,
}


def _by_part(run: Run, name: str, measure: Callable[[Table, Part], Any]) -> dict[int, Any]:
    """Figures of every step's saved episodes, by part; a step is measured once."""
    table = run.episodes.read()
    parts = [part for part in table.parts if part.source == "train" and part.count]
    return {part.step: run.kept(f"{name} {part.step}", part.stamp, partial(measure, table, part)) for part in parts}


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _thinned(curve: dict[str, Any], max_points: int) -> dict[str, Any]:
    """Thins to max_points points: means of neighbours, with the lowest and the highest of each in low and high."""
    count = len(curve["steps"])
    if count <= max_points:
        return curve
    edges = [round(i * count / max_points) for i in range(max_points + 1)]
    spans = list(itertools.pairwise(edges))

    def each(column: Sequence[Any], of: Callable[[list[float]], float]) -> list[float | None]:
        known = [[value for value in column[a:b] if value is not None] for a, b in spans]
        return [of(part) if part else None for part in known]

    return {
        **curve,
        "steps": [curve["steps"][a] for a, _ in spans],
        "values": each(curve["values"], lambda part: math.fsum(part) / len(part)),
        "low": each(curve["low"] or curve["values"], min),
        "high": each(curve["high"] or curve["values"], max),
        "n": each(curve["n"], min) if curve["n"] else None,
        "thinned": True,
    }
