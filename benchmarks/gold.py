"""Plays every task of an environment twice: with its oracle's messages, and with an agent that says nothing.

    python benchmarks/gold.py bfcl agentdojo:attack=important_instructions_no_names
    python benchmarks/gold.py tau_bench tau_bench@train --path tau_bench=FOLDER --write docs/benchmarks.md

An adapter is right when the first always earns success and the second never, and neither ends in an error. Prints a
Markdown table, then the ids of what is not so; ends with 1 when there are any. An environment is a name or an import
path with `:option=value` after it, and `@train` for that split; a value is read as YAML. The package or the path of
each must be there: `agentgym envs` says how to get them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.policies.scripted import play_script
from agentgym.rollout.environments import build_environment
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Json, Message, Split, Task
from agentgym.yaml import parse_yaml

BEGIN, END = "<!-- gold -->", "<!-- /gold -->"
HEADER = (
    "environment", "split", "tasks", "gold succeeds", "nothing succeeds", "gold changes nothing",
    "a gold call fails", "weak checks", "left out", "s",
)  # fmt: skip
SILENCE: Message = {"role": "assistant", "content": ""}


@dataclass(slots=True, kw_only=True)
class Row:
    """One environment and split. The lists hold task ids; left_out: with the reason before them."""

    label: str
    split: Split
    tasks: int = 0
    gold_failed: list[str] = field(default_factory=list)
    silence_paid: list[str] = field(default_factory=list)
    silence_broke: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.tasks > 0 and not self.gold_failed and not self.silence_paid and not self.silence_broke

    def cells(self) -> list[str]:
        return [
            self.label,
            self.split,
            str(self.tasks),
            f"{self.tasks - len(self.gold_failed)} of {self.tasks}",
            f"{len(self.silence_paid)} of {self.tasks}",
            str(len(self.unchanged)),
            str(len(self.faulty)),
            str(len(self.weak)),
            str(len(self.left_out)),
            f"{self.seconds:.0f}",
        ]


async def measure(
    label: str, environment: Environment[Any], split: Split, limit: int | None, registry: PluginRegistry
) -> Row:
    """Raises UserError when the environment has no oracle."""
    row = Row(label=label, split=split)
    began = time.monotonic()
    scorer = Scorer.of(environment, registry, {})
    try:
        for task in itertools.islice(environment.tasks(split), limit):
            await _measure_task(environment, task, scorer, row)
            if row.tasks % 100 == 0:
                print(f"{label} {split}: {row.tasks} tasks", file=sys.stderr)
    finally:
        await scorer.close()
    left_out = getattr(environment, "left_out", None)
    if left_out is not None:
        row.left_out = [f"{reason}: {key}" for reason, keys in left_out(split).items() for key in keys]
    row.seconds = time.monotonic() - began
    return row


async def _measure_task(environment: Environment[Any], task: Task, scorer: Scorer, row: Row) -> None:
    says = environment.solve(task)
    if says is None:
        raise UserError(f"{row.label} has no oracle for {task.task_id}: its `solve` returned None")
    gold = await play_script(environment, task, says, scorer=scorer)
    nothing = await play_script(environment, task, itertools.repeat(SILENCE), scorer=scorer)
    row.tasks += 1
    if not _succeeded(gold):
        row.gold_failed.append(f"{task.task_id}: {gold.error or gold.info}")
    if nothing.success or (nothing.reward or 0.0) > 0:
        row.silence_paid.append(task.task_id)
    if nothing.error is not None:  # it was not judged, which is not the same as no success
        row.silence_broke.append(f"{task.task_id}: {nothing.error}")
    if gold.info.get("gold_changes") is False:
        row.unchanged.append(task.task_id)
    if gold.info.get("gold_faulty") is True:
        row.faulty.append(task.task_id)
    if gold.info.get("weak_check") is True:
        row.weak.append(task.task_id)


def _succeeded(episode: Episode) -> bool:
    return episode.success and episode.reward == 1.0


def table(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(HEADER) + " |", "|---|---|" + "--:|" * (len(HEADER) - 2)]
    return "\n".join([*lines, *("| " + " | ".join(row.cells()) + " |" for row in rows)])


def lists(rows: Iterable[Row]) -> str:
    """The ids behind the counts."""
    sections = []
    for row in rows:
        for what, keys in (
            ("gold does not succeed", row.gold_failed),
            ("doing nothing succeeds", row.silence_paid),
            ("the environment fails when nothing is done", row.silence_broke),
            ("a gold call fails", row.faulty),
            ("the package's check passes for silence", row.weak),
            ("left out", row.left_out),
        ):
            if keys:
                sections.append(f"{row.label}, {row.split}: {what}: {', '.join(keys)}")
    return "\n\n".join(sections)


def parse(label: str) -> tuple[str, dict[str, Json], Split]:
    """`name:option=value:option=value@split` as a name, its options and the split."""
    label, _, split = label.partition("@")
    if split not in ("", "train", "test"):
        raise UserError(f"no split {split!r}; give @train or @test")
    name, *parts = label.split(":")
    while parts and "=" not in parts[0]:  # the colon of an import path
        name += ":" + parts.pop(0)
    options = {}
    for part in parts:
        option, _, value = part.partition("=")
        options[option] = cast(Json, parse_yaml(value, where=part))
    return name, options, cast(Split, split or "test")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="+", metavar="ENV[:option=value...][@train]")
    parser.add_argument("--tasks", type=int, metavar="N", help="of each; all by default")
    parser.add_argument("--path", action="append", default=[], metavar="ENV=FOLDER", help="the option `path` of one")
    parser.add_argument("--write", type=Path, metavar="PAGE", help=f"put the table between {BEGIN} and {END}")
    given = parser.parse_args()
    paths = {name: folder for name, _, folder in (one.partition("=") for one in given.path)}
    registry = PluginRegistry.discover()
    rows = []
    try:
        for label in given.environments:
            name, options, split = parse(label)
            if name in paths:
                options["path"] = paths[name]
            environment = build_environment(registry, name, options)
            label = label.partition("@")[0]
            rows.append(asyncio.run(measure(label, environment, split, given.tasks, registry)))
    except UserError as error:
        print(f"gold.py: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    print(f"\nPython {platform.python_version()}, {platform.machine()}.\n\n{lists(rows)}")
    if given.write:
        page = given.write.read_text()
        before, _, rest = page.partition(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
