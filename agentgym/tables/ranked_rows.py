"""The rows of the leaderboard: an evaluation, or the seeds of one recipe, with all its figures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

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
    """One evaluation, or evaluations of one recipe's runs with different seeds, a run each.

    folder_name: of its folder, where another row of the same table has the same name.
    """

    members: tuple[EvaluationSummary, ...]
    folder_name: str = ""

    @property
    def first(self) -> EvaluationSummary:
        return self.members[0]

    @property
    def policy(self) -> str:
        return f"{self.name} ({self.folder_name})" if self.folder_name else self.name

    @property
    def name(self) -> str:
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
        if over.low == over.high:  # equal rewards: an interval of no width misleads
            return Figure(value=over.mean, low=None, high=None)
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
            "estimated": any(one.estimated for one in members),
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
    """One row for each evaluation. seeds: runs of one recipe that differ in their seed are one row, with the newest
    evaluation of each seed."""
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
    twins: dict[tuple[object, ...], list[str]] = {}
    for row in rows:
        twins.setdefault((*row.section, row.name), []).append(row.first.folder)
    shortened = {key: short_folders(folders) for key, folders in twins.items() if len(folders) > 1}
    return [
        replace(row, folder_name=shortened.get((*row.section, row.name), {}).get(row.first.folder, "")) for row in rows
    ]


def short_folders(folders: Iterable[str]) -> dict[str, str]:
    """The ends of paths, of at least two names, and of as many more as tell the folders apart."""
    parts = {folder: Path(folder).parts for folder in folders}
    for count in range(2, max(map(len, parts.values()), default=2) + 1):
        found = {folder: "/".join(one[-count:]) for folder, one in parts.items()}
        if len({*found.values()}) == len(found):
            return found
    return {folder: folder for folder in parts}


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
