"""Plays every task of an environment twice: with its oracle's messages, and with an agent that says nothing.

An adapter is right when the first always earns success and the second never, and neither ends in an error.
The table of docs/benchmarks.md was made by gold.py of commit a5bae9c8.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.policies.scripted import play_script
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Message, Split, Task

SILENCE: Message = {"role": "assistant", "content": ""}


@dataclass(slots=True, kw_only=True)
class Row:
    """One environment and split. The lists hold task ids."""

    label: str
    split: Split
    tasks: int = 0
    gold_failed: list[str] = field(default_factory=list)
    silence_paid: list[str] = field(default_factory=list)
    silence_broke: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    faulty: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.tasks > 0 and not self.gold_failed and not self.silence_paid and not self.silence_broke


async def measure(
    label: str, environment: Environment[Any], split: Split, limit: int | None, registry: PluginRegistry
) -> Row:
    """Raises UserError when the environment has no oracle."""
    row = Row(label=label, split=split)
    scorer = Scorer.of(environment, registry, {})
    try:
        for task in itertools.islice(environment.tasks(split), limit):
            await _measure_task(environment, task, scorer, row)
    finally:
        await scorer.close()
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
        ):
            if keys:
                sections.append(f"{row.label}, {row.split}: {what}: {', '.join(keys)}")
    return "\n\n".join(sections)
