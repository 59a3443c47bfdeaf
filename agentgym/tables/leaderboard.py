"""The leaderboard: evaluations by benchmark, seeds of one recipe as one row, and what has to be said beside them."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgym.errors import UserError, nearest
from agentgym.evals.statistics import run_difference
from agentgym.evals.summary import EvaluationSummary, PassShare, Share

Cell: TypeAlias = "str | int | float | None"
SUCCESS, REWARD = "success", "reward"
SHARE = re.compile(r"success|pass@\d+")
_SEED = re.compile(r"(?<=.)[-_.]*(seed|s)?[-_.]*\d+$")  # at the end of a run's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value with its 95% interval, where there is one."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One evaluation, or evaluations of one recipe's runs with different seeds, a run each."""

    members: tuple[EvaluationSummary, ...]

    @property
    def first(self) -> EvaluationSummary:
        return self.members[0]

    @property
    def policy(self) -> str:
        first, count = self.first, len(self.members)
        how = (f" with {first.agent}" if first.agent != "chat" else "") + ", greedy" * first.greedy
        if count == 1:
            return first.policy + how
        names = {_SEED.sub("", one.run) for one in self.members}
        name = names.pop() if len(names) == 1 else f"{first.run} and {count - 1} more"
        return f"{name} step {first.step}{how}, {count} seeds"

    @property
    def section(self) -> tuple[str, int]:
        """What is compared in one table: a benchmark and its version."""
        return self.first.benchmark, self.first.version

    def figure(self, metric: str) -> Figure | None:
        """metric: success, pass@k, reward (the total), a reward's or measure's name. None where it is not known of all.

        Of several runs it is their mean, with the interval over runs: what another seed's run would be like.
        """
        found = [_figure(one, metric) for one in self.members]
        known = [one for one in found if one is not None]
        if len(known) < len(found):
            return None
        if len(known) == 1:
            return known[0]
        share = SHARE.fullmatch(metric) is not None
        step = 1 / max(1, *(one.num_episodes for one in self.members)) if share else 0.0
        over = run_difference([one.value for one in known], resolution=step)
        low, high = (max(0.0, over.low), min(1.0, over.high)) if share else (over.low, over.high)
        return Figure(value=over.mean, low=low, high=high)

    def total(self, name: str) -> float | None:
        """The sum over members of a field; None where one is unknown."""
        found = [getattr(one, name) for one in self.members]
        return None if None in found else sum(found)

    def mean(self, name: str) -> float | None:
        """The mean of a field over members."""
        total = self.total(name)
        return None if total is None else total / len(self.members)

    @property
    def tokens(self) -> float | None:
        """Sampled tokens of an episode, on average."""
        total = self.total("tokens")
        played = sum(one.num_episodes + one.num_broken + one.num_left_out for one in self.members)
        return None if total is None or not played else total / played

    def flat(self, ks: Iterable[int], rewards: Iterable[str]) -> dict[str, Cell]:
        """All that is known, by column. ks: of pass@k. rewards: their names."""
        first, members = self.first, self.members
        found: dict[str, Cell] = {
            "benchmark": first.benchmark,
            "version": first.version,
            "policy": self.policy,
            "model": first.model,
            "run": " ".join(dict.fromkeys(one.run for one in members)),
            "step": first.step,
            "agent": first.agent,
            "num_runs": len(members),
            "train_seeds": " ".join(str(one.train_seed) for one in members if one.train_seed is not None),
        }
        metrics = {SUCCESS: SUCCESS, **{f"pass@{k}": f"pass@{k}" for k in ks}, REWARD: REWARD}
        named = {name if "." in name else f"reward.{name}": name for name in rewards}  # the dot is that of a measure
        for name, metric in {**metrics, **named}.items():
            one = self.figure(metric)
            values = (one.value, one.low, one.high) if one else (None, None, None)
            found |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
        successes = [one.success.num_successes if one.success else None for one in members]
        return {
            **found,
            "num_tasks": first.num_tasks,
            "samples_per_task": first.samples_per_task,
            "num_episodes": sum(one.num_episodes for one in members),
            "num_successes": None if None in successes else sum(one or 0 for one in successes),
            "num_broken": sum(one.num_broken for one in members),
            "num_left_out": sum(one.num_left_out for one in members),
            "cost": self.total("cost"),
            "currency": first.currency,
            "prompt_tokens": self.total("prompt_tokens"),
            "tokens": self.total("tokens"),
            "turns_mean": self.mean("turns"),
            "seconds_mean": self.mean("seconds"),
            "eval_seed": first.seed,
            "greedy": first.greedy,
            "data_hash": first.data_hash,
            "sandbox": first.sandbox,
            "tags": " ".join(self.tags),
            "note": "; ".join(dict.fromkeys(one.note for one in members if one.note)),
            "measured": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(max(one.time for one in members))),
            "folder": " ".join(one.folder for one in members),
            "file_step": first.file_step,
        }

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tag for one in self.members for tag in one.tags))


def _figure(one: EvaluationSummary, metric: str) -> Figure | None:
    share: Share | PassShare | None = one.success
    if SHARE.fullmatch(metric):
        if metric != SUCCESS:
            share = next((each for each in one.pass_at if f"pass@{each.k}" == metric), None)
        return None if share is None else Figure(value=share.value, low=share.low, high=share.high)
    means = (*one.rewards, *one.measures)
    reward = next((each for each in means if each.name == ("" if metric == REWARD else metric)), None)
    return None if reward is None else Figure(value=reward.mean, low=reward.low, high=reward.high)


def rows_of(summaries: Sequence[EvaluationSummary], *, seeds: bool = True) -> list[Row]:
    """One row for each evaluation. seeds: runs of one recipe that differ in their seed are one row, each run once."""
    alike: dict[tuple[object, ...], list[EvaluationSummary]] = {}
    for number, one in enumerate(sorted(summaries, key=lambda one: -one.time)):
        played = (one.environment, one.version, one.data_hash, one.num_tasks, one.samples_per_task, one.seed,
                  one.greedy, one.settings)  # fmt: skip
        key = (*played, one.recipe, one.step) if seeds and one.recipe else (number,)
        alike.setdefault(key, []).append(one)
    rows = []
    for some in alike.values():
        newest = {one.train_seed: one for one in reversed(some)}
        if len(newest) > 1:
            rows.append(Row(members=tuple(sorted(newest.values(), key=lambda one: one.train_seed or 0))))
        else:
            rows += [Row(members=(one,)) for one in some]
    return rows


def names_of(rows: Iterable[Row]) -> tuple[list[int], list[str]]:
    """The ks of pass@k above 1, and the names of rewards where an environment has several, and of measures."""
    members = [one for row in rows for one in row.members]
    ks = sorted({each.k for one in members for each in one.pass_at if each.k > 1})
    several = [[each.name for each in one.rewards if each.name] for one in members]
    rewards = [name for names in several if len(names) > 1 for name in names]
    return ks, list(dict.fromkeys([*rewards, *(each.name for one in members for each in one.measures)]))


def metrics_of(rows: Iterable[Row]) -> list[str]:
    """What rows can be sorted by."""
    found = [SUCCESS, REWARD]
    for row in rows:
        for one in row.members:
            found += [f"pass@{each.k}" for each in one.pass_at] + [each.name for each in one.rewards if each.name]
            found += [each.name for each in one.measures]
    return list(dict.fromkeys(found))


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
        "cost": lambda row: "-" if (cost := row.total("cost")) is None else f"{cost:.4f} {row.first.currency}",
        "tokens/episode": lambda row: "-" if row.tokens is None else f"{row.tokens:.0f}",
        "s/episode": lambda row: "-" if (seconds := row.mean("seconds")) is None else f"{seconds:.2f}",
        "tags": lambda row: " ".join(row.tags) or "-",
        "note": lambda row: " ".join(str(row.flat((), ())["note"] or "-").split()),
    }
    found = {name: [cell(row) for row in rows] for name, cell in columns.items()}
    kept = [name for name, cells in found.items() if {*cells} - {"-", "0"} or name in ("policy", metric, "n")]
    return tuple(kept), tuple(zip(*(found[name] for name in kept), strict=True))


def matrix(rows: Sequence[Row], metric: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Header and cells: a row for each policy, a column for each benchmark and version, the metric with its interval.

    Of a policy that was measured several times on one benchmark the newest figure is shown.
    """
    measures = {at: _measure(some, metric) for at, some in _by_section(rows).items()}
    columns = [*measures]
    found: dict[str, dict[tuple[str, int], Figure]] = {}
    for row in sorted(rows, key=lambda row: max(one.time for one in row.members)):
        if (one := row.figure(measures[row.section])) is not None:
            found.setdefault(row.policy, {})[row.section] = one

    def values(policy: str) -> list[float]:
        return [-found[policy][at].value if at in found[policy] else math.inf for at in columns]

    cells = tuple(
        (policy, *(f"{_number(one)} {interval(one)}" if (one := found[policy].get(at)) else "-" for at in columns))
        for policy in sorted(found, key=values)
    )
    names = (f"{at[0]} v{at[1]}" + " (reward)" * (measures[at] != metric) for at in columns)
    return ("policy", *names), cells


def leaderboard_json(summaries: Sequence[EvaluationSummary], ids: Mapping[str, str]) -> dict[str, object]:
    """`/api/leaderboard`. ids: of runs in links, by their folder. Rows are evaluations (`joined` if they are also part
    of a row of seeds), and rows of seeds (of `num_runs`)."""
    joined, each = rows_of(summaries), rows_of(summaries, seeds=False)
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
    return {"rows": rows, "sections": parts, "ks": ks, "rewards": rewards, "notes": versions_note(joined)}


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
    if metric == REWARD and all(one.success is None for one in members):
        found.append("success is unknown, so the rows are sorted by reward")
    return tuple(found)


def interval(one: Figure | None) -> str:
    return "-" if one is None or one.low is None or one.high is None else f"[{one.low:.3f}, {one.high:.3f}]"


def _number(one: Figure | None) -> str:
    return "-" if one is None else f"{one.value:.3f}"
