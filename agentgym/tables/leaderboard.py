"""The leaderboard: evaluations by benchmark, best first, and what has to be said beside them."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentgym.errors import UserError, nearest
from agentgym.tables.ranked_rows import REWARD, SUCCESS, Cell, Figure, Row, metrics_of, names_of, rows_of, short_folders
from agentgym.tables.summaries import Evaluations

MAX_NOTE = 60  # characters, in a table


def chosen(
    rows: Sequence[Row], *, envs: Collection[str] = (), tags: Collection[str] = (), search: str = "", last: bool = False
) -> list[Row]:
    """The rows that were asked for. envs: NAME, or NAME@VERSION. search: a part of the policy, model, tags or note.
    last: of a run only its last measured step. Raises UserError for an environment that no row has."""
    known = {row.first.environment for row in rows} | {f"{row.first.environment}@{row.first.version}" for row in rows}
    for name in envs:
        if name not in known:
            raise UserError(f"no evaluation here is of the environment {name!r}.{nearest(name, known)}")
    newest: dict[tuple[object, ...], int] = {}
    for row in rows:
        for one in row.members:
            key = (one.run_dir, *row.section)
            newest[key] = max(newest.get(key, 0), one.step or 0)

    def wanted(row: Row) -> bool:
        one, text = row.first, " ".join(map(str, row.flat((), ()).values())).lower()
        return (
            (not envs or one.environment in envs or f"{one.environment}@{one.version}" in envs)
            and all(tag in row.tags for tag in tags)
            and search.lower() in text
            and not (last and one.run and (one.step or 0) < newest[one.run_dir, *row.section])
        )

    return [row for row in rows if wanted(row)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The table of one benchmark and version. metric: what it is sorted by. notes: what to know before reading it."""

    title: str
    metric: str
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def sections(rows: Sequence[Row], metric: str = SUCCESS, sort: str = "") -> list[Section]:
    """A table for each benchmark and version, best first. sort: another column, of `Row.flat`; -COLUMN: largest first.

    Where no row of a section knows success, it is sorted by reward. Raises UserError for a metric or column that no
    row has.
    """
    if metric not in (known := metrics_of(rows)):
        raise UserError(f"no evaluation here has the metric {metric!r}.{nearest(metric, known)}")
    return [_section(some, _measure(some, metric), sort) for some in _by_section(rows).values()]


def _by_section(rows: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    parts: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.section):
        parts.setdefault(row.section, []).append(row)
    return parts


def _measure(rows: Iterable[Row], metric: str) -> str:
    """The metric, or the reward where it is success and no row knows that."""
    return REWARD if metric == SUCCESS and all(row.figure(SUCCESS) is None for row in rows) else metric


def _section(rows: Sequence[Row], metric: str, sort: str) -> Section:
    ordered = _ordered(rows, metric, sort)
    header, cells = table(ordered, metric)
    (benchmark, version), one = rows[0].section, rows[0].first
    alike = len({row.first.num_tasks for row in rows}) == 1
    title = f"{benchmark}, version {version}" + f", {one.num_tasks} tasks" * alike
    return Section(title=title, metric=metric, header=header, cells=cells, rows=ordered, notes=_notes(rows, metric))


def _ordered(rows: Sequence[Row], metric: str, sort: str) -> tuple[Row, ...]:
    """Unknown values are last in both directions."""
    name, down = sort.removeprefix("-"), sort.startswith("-")

    def value(row: Row) -> Cell:
        if not sort:
            one = row.figure(metric)
            return None if one is None else -one.value
        flat = row.flat(*names_of(rows))
        if name not in flat:
            raise UserError(f"--sort: no column {name!r}.{nearest(name, flat)}")
        return flat[name]

    found = [(value(row), row) for row in rows]
    known = [(one, row) for one, row in found if one is not None]
    known.sort(key=lambda pair: (isinstance(pair[0], str), pair[0], pair[1].policy), reverse=down)
    return tuple(row for _, row in [*known, *((one, row) for one, row in found if one is None)])


def table(rows: Sequence[Row], metric: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Header and cells: the metric with its interval first. A column in which nothing is known is left out."""
    ks, rewards = names_of(rows)
    several = len({row.first.num_tasks for row in rows}) > 1
    more = [name for name in (*(f"pass@{k}" for k in ks), *rewards) if name != metric]
    columns: dict[str, Callable[[Row], str]] = {
        "policy": lambda row: row.policy,
        metric: lambda row: _number(row.figure(metric)),
        "95% interval": lambda row: interval(row.figure(metric)),
        "runs": lambda row: str(len(row.members)) if any(len(one.members) > 1 for one in rows) else "-",
        "tasks": lambda row: str(row.first.num_tasks) if several else "-",
        "n": lambda row: str(sum(one.num_episodes for one in row.members)),
        **{name: lambda row, name=name: _number(row.figure(name)) for name in more},  # type: ignore[misc]
        "left out": lambda row: str(int(row.total("num_broken") or 0) + int(row.total("num_left_out") or 0)),
        "cost": lambda row: (
            "-" if (cost := row.total("cost")) is None else _about(row, f"{cost:.4f} {row.first.currency}")
        ),
        "tokens/episode": lambda row: "-" if row.tokens is None else _about(row, f"{row.tokens:.0f}"),
        "s/episode": lambda row: "-" if (seconds := row.mean("seconds")) is None else f"{seconds:.2f}",
        "tags": lambda row: " ".join(row.tags) or "-",
        "note": lambda row: textwrap.shorten(str(row.flat((), ())["note"] or "-"), MAX_NOTE, placeholder="..."),
    }
    found = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    kept = [name for name, cells in found.items() if {*cells} - {"-", "0"} or name in ("policy", metric, "n")]
    return tuple(kept), tuple(zip(*(found[name] for name in kept), strict=True))


def matrix(rows: Sequence[Row], metric: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Header and cells: a row for each policy, a column for each benchmark and version, the metric with its interval.

    Of a policy that was measured several times on one benchmark the newest figure is shown. Runs or servers that share
    a name are rows of their own.
    """
    measures = {at: _measure(some, metric) for at, some in _by_section(rows).items()}
    columns = [*measures]
    found: dict[tuple[str, ...], dict[tuple[str, int], Figure]] = {}
    newest: dict[tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda row: max(one.time for one in row.members)):
        if (one := row.figure(measures[row.section])) is not None:
            policy = (row.name, row.first.run_dir, row.first.server)
            found.setdefault(policy, {})[row.section] = one
            newest[policy] = row
    alike = Counter(row.name for row in newest.values())

    def values(policy: tuple[str, ...]) -> list[float]:
        return [-found[policy][at].value if at in found[policy] else math.inf for at in columns]

    shortened = short_folders(row.first.run_dir or row.first.folder for row in newest.values())

    def label(row: Row) -> str:
        where = row.first.server or shortened[row.first.run_dir or row.first.folder]
        return f"{row.name} ({where})" if alike[row.name] > 1 else row.name

    def cell(one: Figure | None) -> str:
        return f"{_number(one)} {interval(one)}" if one else "-"

    cells = tuple(
        (label(newest[policy]), *(cell(figures.get(at)) for at in columns))
        for policy, figures in sorted(found.items(), key=lambda pair: values(pair[0]))
    )
    names = (f"{at[0]} v{at[1]}" + " (reward)" * (measures[at] != metric) for at in columns)
    return ("policy", *names), cells


def leaderboard_json(found: Evaluations, ids: Mapping[str, str]) -> dict[str, object]:
    """`/api/leaderboard`. ids: of runs in links, by their folder. Rows are evaluations (`joined` if they are also part
    of a row of seeds), and rows of seeds (of `num_runs`)."""
    joined, each = rows_of(found.summaries), rows_of(found.summaries, seeds=False)
    groups = [row for row in joined if len(row.members) > 1]
    among = {(one.folder, one.file_step) for row in groups for one in row.members}
    ks, rewards = names_of(each)
    rows = [
        {
            **row.flat(ks, rewards),
            "folder": " ".join(ids[one.folder] for one in row.members),  # no path: the page may be exported
            "tags": row.tags,
            "environment": row.first.environment,
            "tokens_mean": row.tokens,
            "time": max(one.time for one in row.members),
            "runs": [{"id": ids[one.folder], "step": one.file_step, "name": one.policy} for one in row.members],
            "joined": len(row.members) == 1 and (row.first.folder, row.first.file_step) in among,
        }
        for row in (*each, *groups)
    ]
    parts = [
        {"benchmark": part.rows[0].first.benchmark, "version": part.rows[0].first.version, "metric": part.metric,
         "count": len(part.rows), "notes": part.notes}
        for part in (sections(joined) if joined else ())
    ]  # fmt: skip
    notes = versions_note(joined)
    for text in found.broken:  # an exported page names no folders of this machine
        path = next((path for path in ids if path in text), "")
        notes.append(text.replace(path, ids[path]) if path else text)
    return {"rows": rows, "sections": parts, "ks": ks, "rewards": rewards, "notes": notes}


def versions_note(rows: Iterable[Row]) -> list[str]:
    """Which environments are here in several versions."""
    versions: dict[str, set[int]] = {}
    for row in rows:
        versions.setdefault(row.first.benchmark, set()).add(row.first.version)
    return [
        f"{name} was played in versions {', '.join(map(str, sorted(some)))}: figures of different versions do not "
        f"compare, so each version is apart"
        for name, some in versions.items()
        if len(some) > 1
    ]


def _notes(rows: Sequence[Row], metric: str) -> tuple[str, ...]:
    members = [one for row in rows for one in row.members]
    found = []
    differs: dict[str, set[int]] = {
        "tasks": {one.num_tasks for one in members},
        "samples a task": {one.samples_per_task for one in members},
        "eval.seed": {one.seed for one in members},
        "eval.greedy": {one.greedy for one in members},
    }
    said = [f"{name} ({', '.join(map(str, sorted(some)))})" for name, some in differs.items() if len(some) > 1]
    by_count: dict[int, set[str]] = {}
    for one in members:
        by_count.setdefault(one.num_tasks, set()).add(one.data_hash)
    if any(len(some) > 1 for some in by_count.values()):
        said.append("the tasks themselves, of the same number")
    settings = {setting for one in members for setting in one.settings}
    apart = [setting for setting in sorted(settings) if any(setting not in one.settings for one in members)]
    for name in dict.fromkeys(setting.partition("=")[0] for setting in apart):
        said.append(f"{name} ({', '.join(one.partition('=')[2] for one in apart if one.startswith(f'{name}='))})")
    if said:
        care = "read their order with care; `agentgym compare A B` pairs by task"
        found.append(f"the rows differ in {', '.join(said)}: {care}")
    if any(len(row.members) > 1 for row in rows):
        found.append("an interval of several runs is over runs: what a run with another seed would show")
    if any(one.estimated for one in members):
        found.append("~: the server did not count these tokens; they are estimated from characters, and so is the cost")
    if metric == REWARD and all(one.success is None for one in members):
        found.append("success is unknown, so the rows are sorted by reward")
    return tuple(found)


def interval(one: Figure | None) -> str:
    return "-" if one is None or one.low is None or one.high is None else f"[{one.low:.3f}, {one.high:.3f}]"


def _about(row: Row, text: str) -> str:
    return "~" * row.first.estimated + text


def _number(one: Figure | None) -> str:
    return "-" if one is None else f"{one.value:.3f}"
