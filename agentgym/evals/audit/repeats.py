"""What has to be the same again: tasks and scores, in this process and in others with another PYTHONHASHSEED."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

from agentgym.env import Environment
from agentgym.evals.audit.findings import Report
from agentgym.evals.audit.structure import as_text
from agentgym.held_loop import each
from agentgym.sandbox import SandboxOptions
from agentgym.types import Json, Task

NUM_TASKS, NUM_PLAYED = 48, 6
DRAW_S = 2.0
HASH_SEEDS = ("1", "2")
CHILD_S = 60.0
MODULE = "agentgym.evals.audit.child"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildRequest:
    """What another process draws and plays. counts: tasks that are drawn, by split. sandbox: None plays nothing."""

    name: str
    options: Mapping[str, Json]
    rewards: Mapping[str, float]
    seed: int
    counts: Mapping[str, int]
    sandbox: str | None
    sandbox_options: SandboxOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a process saw. tasks: by split, each as JSON. scores: of some episodes by what was played."""

    tasks: Mapping[str, Sequence[str]]
    scores: Mapping[str, str]


def as_line(task: Task) -> str:
    """All of a task that could differ."""
    if not isinstance(task, Task):  # a finding of its own
        return type(task).__name__
    return as_text({"id": task.task_id, "prompt": task.prompt, "answer": task.answer, "difficulty": task.difficulty})


def tasks_seen(
    environment: Environment[Any], seed: int, counts: Mapping[str, int] | None = None, limit_s: float = math.inf
) -> dict[str, list[str]]:
    """The first tasks of each split: so many, or as many as can be had in a few seconds. limit_s: of each."""
    found: dict[str, list[str]] = {split: [] for split in environment.splits}
    for split in environment.splits:
        began = time.monotonic()
        stream = each(partial(environment.tasks, split, seed), limit_s)
        for task in islice(stream, NUM_TASKS if counts is None else counts[split]):
            found[split].append(as_line(task))
            if counts is None and time.monotonic() - began > DRAW_S:
                break
    return found


def check_again(environment: Environment[Any], seed: int, report: Report, limit_s: float) -> dict[str, list[str]]:
    """The same object gives the same tasks again; returns them."""
    seen = tasks_seen(environment, seed, limit_s=limit_s)
    again = tasks_seen(environment, seed, {split: len(lines) for split, lines in seen.items()}, limit_s)
    if difference := first_difference(seen, again):
        message = "asked again for the same seed, the same object gives other tasks"
        report.add("tasks_change", "second call", message, difference)
    return seen


async def check_processes(request: ChildRequest, here: Mapping[str, Sequence[str]], report: Report) -> None:
    """Other processes give the same tasks and the same scores."""
    answers = await asyncio.gather(*(_ask(request, hash_seed) for hash_seed in HASH_SEEDS))
    failed = [answer for answer in answers if isinstance(answer, str)]
    if failed:
        report.notes.append(f"not compared with other processes: {failed[0]}")
        return
    seen = [answer for answer in answers if isinstance(answer, Seen)]
    if difference := first_difference(here, seen[0].tasks) or first_difference(seen[0].tasks, seen[1].tasks):
        message = "other processes, with other values of PYTHONHASHSEED, give other tasks for the same seed"
        report.add("tasks_change", "processes", message, difference)
        return
    changed = [key for key in seen[0].scores if seen[0].scores[key] != seen[1].scores.get(key)]
    if changed:
        message = f"{len(changed)} of {len(seen[0].scores)} episodes are scored otherwise in another process"
        example = f"{changed[0]}: {seen[0].scores[changed[0]]} and {seen[1].scores.get(changed[0])}"
        report.add("scores_change", "processes", message, example)
    report.figures["compared_scores"] = float(len(seen[0].scores))


def first_difference(one: Mapping[str, Sequence[str]], other: Mapping[str, Sequence[str]]) -> str:
    """The first task that differs, both ways; empty when none does."""
    for split, lines in one.items():
        others = other[split]
        for number, (a, b) in enumerate(zip(lines, others, strict=False)):
            if a != b:
                place = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
                start = max(0, place - 40)
                return f"{split} task {number}: …{a[start : place + 80]}…\nand …{b[start : place + 80]}…"
        if len(lines) != len(others):
            return f"{split}: {len(lines)} tasks and {len(others)}"
    return ""


async def _ask(request: ChildRequest, hash_seed: str) -> Seen | str:
    """What a process of its own saw, or why there is no answer."""
    variables = {**os.environ, "PYTHONHASHSEED": hash_seed}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        MODULE,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=variables,
    )
    try:
        async with asyncio.timeout(CHILD_S):
            out, err = await process.communicate(json.dumps(asdict(request)).encode())
    except TimeoutError:
        return f"no answer within {CHILD_S:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        return (err.decode(errors="replace").strip().splitlines() or ["it ended without a word"])[-1]
    return Seen(**json.loads(out.decode().splitlines()[-1]))
