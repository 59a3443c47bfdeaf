"""`agentgym runs list`: the runs, their state and last figures."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import cast

from agentgym.cli.catalogue import RUNS, listed
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError
from agentgym.runs.curve import HELD_OUT
from agentgym.runs.evaluations import with_held_out
from agentgym.runs.folder import RunFolder, RunStatus, runs_in
from agentgym.runs.liveness import last_change
from agentgym.runs.report import number

DESCRIPTION = f"""
List the runs in a folder with their state and last figures: the oldest first, those that go on at the end. gain: the
last checkpoint minus the first on the same held-out tasks, with its 95% interval. changed: when the run last did
something.

What works on a run's folder (each has its own --help: agentgym runs COMMAND --help):
{listed(RUNS)}
"""
EXAMPLES = """
agentgym runs
agentgym runs list --json
agentgym runs list --runs-dir evals
agentgym runs episodes runs/math-1 --failure
agentgym runs curve runs/math-1
"""
TAKES_OVERRIDES = False
HEADER = ("run", "status", "step", "reward", "success", "held-out", "gain", "sandbox", "changed", "reason")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--runs-dir", default="runs", metavar="DIR", help="default: runs")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    folder = Path(arguments.runs_dir)
    if not folder.is_dir():
        raise UserError(f"no folder {str(folder)!r}; give the one that holds the runs with --runs-dir")
    found = sorted((_row(RunFolder.open(folder / name)) for name in runs_in(folder)), key=lambda one: one[0])
    rows = [row for _, row in found]
    if arguments.json:
        shell.say_json([dict(zip(HEADER, row, strict=True)) for row in rows])
    else:
        shell.say_table(HEADER, rows)
    return 0


def _row(folder: RunFolder) -> tuple[tuple[bool, float], tuple[str, ...]]:
    """With its place in the list."""
    status = folder.status()
    rows = with_held_out(folder, HELD_OUT)
    changed = last_change(status, rows, folder.path / "logs")
    last = rows[-1].metrics if rows else {}
    held_out = next((row.metrics[HELD_OUT] for row in reversed(rows) if HELD_OUT in row.metrics), None)
    figures = (last.get("rollout/reward_mean"), last.get("rollout/success_mean"), held_out)
    row = (
        folder.name,
        status.status.value,
        str(rows[-1].step) if rows else "0",
        *("-" if value is None else number(value, 3) for value in figures),
        _gain(folder),
        _sandbox(folder),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(changed)),
        status.reason.partition("\n")[0][:60],
    )
    return (status.status is RunStatus.RUNNING, changed), row


def _gain(folder: RunFolder) -> str:
    """The last checkpoint minus the first on the same held-out tasks, with its interval."""
    found = cast("dict[str, float] | None", folder.load_comparison().get("difference"))
    return f"{found['mean']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]" if found else "-"


def _sandbox(folder: RunFolder) -> str:
    """What ran the policy's code. An unsafe sandbox is marked: it did not protect the run from the policy."""
    found = folder.load_sandbox()
    if not found:
        return "-"
    before = cast("list[str]", found.get("before", []))  # the run was resumed with another sandbox
    names = " after ".join([str(found.get("backend")), *reversed(before)])
    return f"{names} (UNSAFE)" if found.get("unsafe") else names
