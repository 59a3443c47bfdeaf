"""Two evaluations side by side: `agentgym compare` of what is saved, and the difference of two episodes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agentgym.errors import UserError
from agentgym.evals.compare import Comparison, Saved, compare_all
from agentgym.evals.differing import differing, mismatches
from agentgym.runs.records import unpack
from agentgym.tables.episode_search import row
from agentgym.tables.evaluations import MEASURED, difference_json, evaluations
from agentgym.tables.problems import Problem
from agentgym.tables.run import Run

MAX_WORDS = 4000
MAX_CHARS = 20_000
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


def side_name(run: Run, step: int) -> str:
    return f"{run.location.name} step {step}"


def sides_json(runs: Sequence[Run]) -> dict[str, Any]:
    """`/api/compare/sides`: every finished evaluation."""
    return {
        "sides": [
            {
                "side": f"{run.location.id}@{one['step']}",
                "run": run.location.id,
                **{key: one[key] for key in ("step", "environment", *MEASURED, "tasks", "episodes")},
            }
            for run in runs
            for one in evaluations(run)
            if one["finished"]
        ]
    }


def comparison_json(first: Saved, second: Saved, found: Comparison) -> dict[str, Any]:
    """What `agentgym compare --json` prints of two evaluations, and the page shows."""
    return {
        "first": _side(first),
        "second": _side(second),
        "sentence": _sentence(found, first.name, second.name),
        **found_json(found),
        "differing": [asdict(one) for one in differing([first, second])],
        "mismatches": mismatches(first, second),
    }


def comparisons_json(sides: Sequence[Saved], found: Sequence[Comparison]) -> dict[str, Any]:
    """What `agentgym compare --json` prints of more than two evaluations, which are compared with the first."""
    return {
        "against": sides[0].name,
        "sides": [_side(one) for one in sides],
        "comparisons": [
            {"side": side.name, "sentence": _sentence(one, sides[0].name, side.name), **found_json(one),
             "mismatches": mismatches(sides[0], side)}
            for side, one in zip(sides[1:], found, strict=True)
        ],
        "differing": [asdict(one) for one in differing(sides)],
    }  # fmt: skip


def found_json(found: Comparison) -> dict[str, Any]:
    """A comparison without its sides."""
    success, reward = (one and difference_json(one) for one in (found.success, found.reward))
    return {**asdict(found), "success": success, "reward": reward}


def compare_json(*given: tuple[Run, int]) -> dict[str, Any]:
    """`/api/compare`. keys: of the episodes of each side, by id; where there are two. Raises Problem for an evaluation
    that is not finished or shares no tasks.
    """
    names = [side_name(*side) for side in given]
    if len({*names}) < len(names):  # runs of two folders may be called alike
        names = [f"{run.location.id} step {step}" for run, step in given]
    sides = [_saved(*side, name) for side, name in zip(given, names, strict=True)]
    try:
        found = compare_all(sides[0], sides[1:])
        if len(sides) > 2:
            return comparisons_json(sides, found)
        made = comparison_json(sides[0], sides[1], found[0])
    except UserError as error:
        raise Problem("conflict", str(error)) from None
    for name, (run, step) in zip(("first", "second"), given, strict=True):
        table = run.episodes.read()
        ids = table.columns["episode_id"]
        keys = {ids[number]: table.key(number) for number in table.part("eval", step).rows}
        made[name] |= {"run": run.location.id, "keys": keys}
    return made


def _saved(run: Run, step: int, name: str) -> Saved:
    try:
        saved = Saved.load(run.folder, step, name)
    except (UserError, KeyError, TypeError, ValueError) as error:
        raise Problem("conflict", f"the evaluation {run.location.id}@{step} could not be read: {error}") from None
    if saved is None:
        known = [f"{run.location.id}@{one['step']}" for one in evaluations(run) if one["finished"]]
        raise Problem.unknown("finished evaluation", f"{run.location.id}@{step}", known)
    return saved


def _side(saved: Saved) -> dict[str, Any]:
    return {"name": saved.name, "folder": str(saved.folder.path), "step": saved.step, **saved.result.to_mapping()}


def _sentence(found: Comparison, a: str, b: str) -> str:
    one = found.main
    interval = f"[{one.low:+.3f}, {one.high:+.3f}], paired over {one.num_tasks} tasks"
    if not one.is_clear:
        return f"No clear difference: {b} minus {a} is {one.mean:+.3f} {interval}."
    more = "more" if one.mean > 0 else "less"
    if found.success is None:
        return f"{b} earns {abs(one.mean):.3f} {more} reward than {a} {interval}."
    return f"{b} solves {abs(one.mean):.3f} {more} than {a} {interval}."


def diff_json(run: Run, a: str, b: str) -> dict[str, Any]:
    """`/api/runs/{run}/diff`: message by message; a word that only one has is marked. Raises Problem."""
    table = run.episodes.read()
    (number_a, record_a), (number_b, record_b) = table.read(a), table.read(b)
    first, second = (unpack(record["episode"].get("messages") or []) for record in (record_a, record_b))
    messages, was_cut, differs = [], False, None
    for index in range(max(len(first), len(second))):  # type: ignore[arg-type]
        old, new = (_text(side, index) for side in (first, second))
        parts, cut = _parts(old, new)
        was_cut |= cut
        if differs is None and old != new:
            differs = index
        there = first if index < len(first) else second  # type: ignore[arg-type]
        messages.append({"role": there[index].get("role"), "at": index, "same": old == new, "parts": parts})  # type: ignore
    return {
        "a": row(table, number_a),
        "b": row(table, number_b),
        "same_task": table.columns["task_id"][number_a] == table.columns["task_id"][number_b],
        "first_difference": {"message": differs, "token": _first_token(record_a, record_b)},
        "messages": messages,
        "cut": was_cut,
    }


def _text(messages: Any, index: int) -> str:
    if index >= len(messages):
        return ""
    one = messages[index]
    calls = one.get("tool_calls")
    return str(one.get("content") or "") + (f"\n{calls}" if calls else "")


def _parts(old: str, new: str) -> tuple[list[list[str]], bool]:
    """Pieces of ["=", text], ["-", text] of the first alone, and ["+", text] of the second alone."""
    if old == new:
        return ([["=", old]] if old else []), False
    a, b = _WORD.findall(old[: MAX_CHARS + 1]), _WORD.findall(new[: MAX_CHARS + 1])
    if cut := max(len(a), len(b)) > MAX_WORDS or max(len(old), len(new)) > MAX_CHARS:
        return [["-", old[:MAX_WORDS]], ["+", new[:MAX_WORDS]]], cut
    parts: list[list[str]] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(["=", "".join(a[i:j])])
        else:
            parts += [["-", "".join(a[i:j])]] if j > i else []
            parts += [["+", "".join(b[k:m])]] if m > k else []
    return parts, cut


def _first_token(a: Mapping[str, Any], b: Mapping[str, Any]) -> int | None:
    """The first place in the token columns at which the two differ; None where one begins with the other."""
    rows = []
    for record in (a, b):
        turns = record["episode"]["turns"]
        rows.append([*turns[-1]["prompt_ids"], *turns[-1]["completion_ids"]] if turns else [])
    return next((at for at, (x, y) in enumerate(zip(*rows, strict=False)) if x != y), None)
