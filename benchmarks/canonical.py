"""Grades a benchmark's canonical solutions, which must all pass, and bodies that do nothing, which must all fail.

    python benchmarks/canonical.py HumanEval.jsonl.gz --sandbox docker
    python benchmarks/canonical.py mbpp.jsonl --at-once 4

For files of HumanEval's or MBPP's shape. Nothing is downloaded. HumanEval is at
https://github.com/openai/human-eval/raw/master/data/HumanEval.jsonl.gz, MBPP at
https://github.com/google-research/google-research/raw/master/mbpp/mbpp.jsonl. Exit code 1: a solution was misjudged,
or a row could not be read.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from agentgym import GradeRequest, InfraError, Sandbox, UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Limits, RunStatus
from agentgym_envs.code_exec.datasets_source import row_task
from agentgym_envs.code_exec.problems import Problem

KINDS = ("canonical", "return None", "empty body", "empty file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One solution. right: None when the interpreter can't run it. error: of the first case that failed."""

    task_id: str
    kind: str
    right: bool | None
    status: str
    wall_s: float
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A problem with its task's name. prompt: what begins its function."""

    task_id: str
    problem: Problem
    prompt: str


def read_rows(path: Path) -> tuple[list[Row], list[str]]:
    """The problems of a .jsonl or .jsonl.gz file, and what is wrong with the other rows. Raises ValueError."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    rows: list[Row] = []
    refused: list[str] = []
    for line in filter(str.strip, text.split("\n")):
        row = json.loads(line)
        try:
            task = row_task(row, split="test", visible=1, where=path.name)
        except UserError as error:
            refused.append(str(error))
            continue
        problem = Problem.from_json(task.answer)
        own = row["prompt"] if "entry_point" in row else f"def {problem.entry}(*args, **kwargs):"
        rows.append(Row(task_id=task.task_id, problem=problem, prompt=own))
    return rows, refused


def solutions(row: Row) -> Mapping[str, str]:
    """By kind: the right one, and three that do nothing."""
    problem, prompt = row.problem, row.prompt
    codes = (problem.solution, f"{prompt}\n    return None\n", f"{prompt}\n    pass\n", "")
    return dict(zip(KINDS, codes, strict=True))


async def judge(sandbox: Sandbox, row: Row, kind: str, wall_s: float) -> Judged:
    task_id, problem = row.task_id, row.problem
    request = GradeRequest(
        code=solutions(row)[kind],
        entry=problem.entry,
        cases=problem.cases,
        prelude=problem.prelude,
        limits=Limits(wall_s=wall_s),
    )
    began_s = time.monotonic()
    try:
        verdict = await sandbox.grade(request)
    except InfraError as error:
        words = f"{type(error).__name__}: {error}"
        spent_s = time.monotonic() - began_s
        return Judged(task_id=task_id, kind=kind, right=False, status="infra", wall_s=spent_s, error=words)
    unsupported = verdict.status is RunStatus.UNSUPPORTED and not verdict.passed
    return Judged(
        task_id=task_id,
        kind=kind,
        right=None if unsupported else verdict.passed == (kind == "canonical"),
        status=verdict.status.value,
        wall_s=time.monotonic() - began_s,
        error=next((result.error for result in verdict.results if not result.passed), ""),
    )


async def judge_all(sandbox: Sandbox, rows: Sequence[Row], *, at_once: int, wall_s: float, show: bool) -> list[Judged]:
    """Every kind of solution of every problem, in the rows' order."""
    turns = asyncio.Semaphore(at_once)
    done = 0

    async def one(row: Row, kind: str) -> Judged:
        nonlocal done
        async with turns:
            judged = await judge(sandbox, row, kind, wall_s)
        done += 1
        if show:
            print(f"\r{done} of {len(rows) * len(KINDS)}", end="", file=sys.stderr, flush=True)
        return judged

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(row, kind)) for row in rows for kind in KINDS]
    if show:
        print(file=sys.stderr)
    return [task.result() for task in tasks]


def summary(judged: Sequence[Judged]) -> str:
    """A line for each kind, then every misjudged solution with its error."""
    lines = []
    for kind in KINDS:
        mine = [one for one in judged if one.kind == kind]
        times_ms = sorted(1000 * one.wall_s for one in mine)
        verb = "accepted" if kind == "canonical" else "refused"
        lines.append(
            f"{kind:12} {sum(one.right is True for one in mine)} of {len(mine)} {verb}, "
            f"{sum(one.right is None for one in mine)} unsupported, "
            f"p50 {statistics.median(times_ms):.1f} ms, longest {times_ms[-1]:.0f} ms"
        )
    misses = [one for one in judged if one.right is False]
    lines += [f"WRONG {one.task_id} ({one.kind}): {one.status}: {one.error or 'accepted'}" for one in misses]
    return "\n".join(lines)


async def grade_file(rows: Sequence[Row], arguments: argparse.Namespace) -> int:
    """Grade, print, and return the exit code: 0 when everything was judged correctly."""
    print(f"{len(rows)} problems, {len(KINDS)} solutions each, in {arguments.sandbox}", file=sys.stderr)
    async with PluginRegistry.discover().sandbox(arguments.sandbox)({}) as sandbox:
        judged = await judge_all(
            cast(Sandbox, sandbox), rows, at_once=arguments.at_once, wall_s=arguments.wall_s, show=sys.stderr.isatty()
        )
    if arguments.json:
        print(json.dumps([asdict(one) for one in judged]))
    else:
        if arguments.each:
            for one in judged:
                print(f"{one.task_id:16} {one.kind:12} {1000 * one.wall_s:8.1f} ms  {one.status}")
        print(summary(judged))
    return 1 if any(one.right is False for one in judged) else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="a .jsonl or .jsonl.gz file")
    parser.add_argument("--sandbox", default="docker", help="a backend's name (docker)")
    parser.add_argument("--at-once", type=int, default=1, help="grades at a time (1)")
    parser.add_argument("--wall-s", type=float, default=20.0, help="for one grade (20)")
    parser.add_argument("--each", action="store_true", help="a line with the time of every grade")
    parser.add_argument("--json", action="store_true", help="every grade as JSON")
    arguments = parser.parse_args()
    path = Path(arguments.path)
    if not path.is_file():
        print(f"canonical: there is no file {str(path)!r}; --help says where the data is", file=sys.stderr)
        return 2
    try:
        rows, refused = read_rows(path)
    except (ValueError, OSError) as error:
        print(f"canonical: {error}", file=sys.stderr)
        return 2
    for words in refused:
        print(f"LEFT OUT {words}", file=sys.stderr)
    if not rows:
        return 2
    return asyncio.run(grade_file(rows, arguments)) or int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
