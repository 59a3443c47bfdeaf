"""A table of episodes, filtered, sorted, and a page at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentgym.runs.records import unpack
from agentgym.tables.episode_table import Table
from agentgym.tables.problems import Problem

MAX_LIMIT, LIMIT = 500, 50
MAX_FINAL = 20_000  # characters
SHOWN = (
    "source", "step", "n", "episode_id", "group", "index", "task_id", "difficulty", "category", "outcome", "success",
    "stop", "reward", "rewards", "advantage", "trained", "turns", "prompt_tokens", "tokens", "staleness", "oldest",
    "newest", "tool_calls", "tool_errors", "branches", "retries", "error", "error_text", "seconds",
    "asked_tokens", "cached_tokens", "estimated", "cost",
)  # fmt: skip
SORTABLE = tuple(key for key in SHOWN if key != "rewards")
PAGING = ("source", "sort", "offset", "limit")
Accepts = Callable[[int], bool]


def row(table: Table, number: int) -> dict[str, Any]:
    """One episode as a table shows it."""
    columns = table.columns
    return {"key": table.key(number), **{name: columns[name][number] for name in SHOWN}}


def search(table: Table, asked: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What the parameters ask for: `/api/runs/{run}/episodes`. Raises Problem for an unknown one."""
    single = dict(asked)
    source = single.get("source", "all")
    numbers = _of_source(table, source)
    facets = _facets(table, numbers)
    matched = matching(table, source, [(name, value) for name, value in asked if name not in PAGING])
    offset = whole(single, "offset", 0, 0, 10**9)
    limit = whole(single, "limit", LIMIT, 1, MAX_LIMIT)
    if sort := single.get("sort", ""):
        matched = in_order(table, matched, sort.split(","))
    return {
        "total": len(numbers),
        "matched": len(matched),
        "offset": offset,
        "limit": limit,
        "reward_names": sorted({name for number in numbers for name in table.columns["rewards"][number]}),
        "served": any(table.columns["asked_tokens"][number] is not None for number in numbers),
        "currency": table.prices.currency if table.prices else "",
        "rows": [row(table, number) for number in matched[offset : offset + limit]],
        "facets": facets,
    }


def matching(table: Table, source: str, asked: Sequence[tuple[str, str]]) -> Sequence[int]:
    """The rows that all filters accept, in the table's order. source: train, eval or all. Raises Problem."""
    numbers = _of_source(table, source)
    filters = [_filter(table, name, value) for name, value in asked]
    return [number for number in numbers if all(accepts(number) for accepts in filters)] if filters else numbers


def _of_source(table: Table, source: str) -> Sequence[int]:
    if source == "all":
        return range(len(table))
    if source not in ("train", "eval"):
        raise Problem("invalid", f"source is {source!r}; give train, eval or all")
    return [number for number, one in enumerate(table.columns["source"]) if one == source]


def _facets(table: Table, numbers: Sequence[int]) -> dict[str, Any]:
    columns = table.columns

    def counts(name: str) -> dict[str, int]:
        column = columns[name]
        found = Counter(column) if len(numbers) == len(table) else Counter(column[number] for number in numbers)
        return {str(key): count for key, count in sorted(found.items(), key=lambda item: (-item[1], str(item[0])))}

    steps = [part.step for part in table.parts if part.count and (numbers and part.source in _sources(table, numbers))]
    return {
        "outcome": counts("outcome"),
        "stop": counts("stop"),
        "difficulty": dict(list(counts("difficulty").items())[:100]),
        "category": dict(list(counts("category").items())[:100]),
        "steps": [min(steps), max(steps)] if steps else [],
    }


def _sources(table: Table, numbers: Sequence[int]) -> set[str]:
    return {"train", "eval"} if len(numbers) == len(table) else {table.columns["source"][numbers[0]]}


def _filter(table: Table, name: str, value: str) -> Accepts:
    columns = table.columns
    if name in _EXACT:
        column = columns[_EXACT[name]]
        return lambda number: str(column[number]) == value
    if name in _FLAGS:
        flags, wanted = columns[_FLAGS[name]], _flag(name, value)
        if name == "success":  # what is unknown is neither
            return lambda number: flags[number] is wanted
        return lambda number: bool(flags[number]) is wanted
    if name in _BOUNDS:
        column_name, is_least = _BOUNDS[name]
        figures, bound = columns[column_name], _figure(name, value)
        if is_least:
            return lambda number: figures[number] is not None and figures[number] >= bound
        return lambda number: figures[number] is not None and figures[number] <= bound
    if name == "task":
        tasks = columns["task_id"]
        return lambda number: value in tasks[number]
    if name == "text":
        ids, tasks, text = columns["episode_id"], columns["task_id"], value.lower()
        return lambda number: text in ids[number].lower() or text in tasks[number].lower()
    if name == "error":
        errors = columns["error"]
        return lambda number: bool(errors[number]) if value == "any" else value in errors[number]
    known = (*PAGING, *_EXACT, *_FLAGS, *_BOUNDS, "task", "text", "error")
    raise Problem("invalid", f"no filter {name[:50]!r}; there are {', '.join(known)}")


_EXACT = {"step": "step", "group": "group", "outcome": "outcome", "stop": "stop", "difficulty": "difficulty",
          "category": "category", "task_id": "task_id", "split": "split"}  # fmt: skip
_FLAGS = {"success": "success", "trained": "trained", "tool_errors": "tool_errors"}
_BOUNDS = {
    "step_from": ("step", True),
    "step_to": ("step", False),
    "reward_min": ("reward", True),
    "reward_max": ("reward", False),
    "stale_min": ("staleness", True),
    "turns_min": ("turns", True),
    "tokens_min": ("tokens", True),
    "cost_min": ("cost", True),
    "cost_max": ("cost", False),
}


def in_order(table: Table, numbers: Iterable[int], names: Sequence[str]) -> list[int]:
    """By columns, downwards with a minus before. What is unknown comes last in both directions. Raises Problem."""
    found = list(numbers)
    for name in reversed(names):
        down, key = name.startswith("-"), name.removeprefix("-")
        if key.startswith("reward."):
            rewards, inner = table.columns["rewards"], key.removeprefix("reward.")
            column: Sequence[Any] = [one.get(inner) for one in rewards]
        elif key in SORTABLE:
            column = table.columns[key]
        else:
            raise Problem("invalid", f"can't sort by {key[:50]!r}; there are {', '.join(SORTABLE)} and reward.NAME")
        known = [number for number in found if column[number] is not None]
        unknown = [number for number in found if column[number] is None]
        known.sort(key=column.__getitem__, reverse=down)
        found = known + unknown
    return found


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise Problem("invalid", f"{name} is {value[:50]!r}; give true or false")
    return value == "true"


def _figure(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise Problem("invalid", f"{name} is {value[:50]!r}; give a number") from None


def whole(asked: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A number among a request's parameters. Raises Problem."""
    value = asked.get(name, "")
    if not value:
        return default
    if not value.isdecimal() or not low <= int(value[:20]) <= high:
        raise Problem("invalid", f"{name} is {value[:50]!r}; give a whole number from {low} to {high}")
    return int(value)


def group_of(table: Table, source: str, step: int, group: int) -> list[int]:
    """The rows of one group. Raises Problem."""
    found = [number for number in table.part(source, step).rows if table.columns["group"][number] == group]
    if not found:
        raise Problem("not_found", f"no group {group} in {source}-{step}")
    return found


def group_json(table: Table, source: str, step: int, group: int) -> dict[str, Any]:
    """`/api/runs/{run}/groups/{source}/{step}/{group}`: its episodes with the last words of the policy."""
    numbers = group_of(table, source, step, group)
    finals: dict[str, str] = {}
    prompt: Any = []
    for number in numbers:
        _, record = table.read(key := table.key(number))
        prompt = unpack(record["episode"]["task"]["prompt"])
        messages: Any = unpack(record["episode"].get("messages") or [])
        said = [one for one in messages if one.get("role") == "assistant"]
        finals[key] = str(said[-1].get("content") or "")[:MAX_FINAL] if said else ""
    groups = sorted({table.columns["group"][number] for number in table.part(source, step).rows})
    place = groups.index(group)
    return {
        "source": source,
        "step": step,
        "group": group,
        "task_id": table.columns["task_id"][numbers[0]],
        "prompt": prompt,
        "rows": [row(table, number) for number in numbers],
        "finals": finals,
        "neighbours": {
            "previous": groups[place - 1] if place else None,
            "next": groups[place + 1] if place + 1 < len(groups) else None,
        },
    }
