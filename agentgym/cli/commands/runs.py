"""`agentgym runs list`: the runs, their state and last figures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.cli.catalogue import RUNS, listed
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError
from agentgym.runs.folder import RunStatus, runs_in
from agentgym.runs.report import number
from agentgym.tables.run import Run
from agentgym.tables.summary import run_row

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
    parser.add_argument("--json", action="store_true", help="for scripts: rows with numbers, as the view has them")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    folder = Path(arguments.runs_dir)
    if not folder.is_dir():
        raise UserError(f"no folder {str(folder)!r}; give the one that holds the runs with --runs-dir")
    rows = [run_row(Run.at(folder / name)) for name in runs_in(folder)]
    rows.sort(key=lambda row: (row["status"] == RunStatus.RUNNING, row["changed"] or 0))
    if arguments.json:
        shell.say_json(rows)
    else:
        shell.say_table(HEADER, [_cells(row) for row in rows])
    return 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    gain, held_out = row["gain"], [row[key] for key in ("held_out", "held_out_reward")]
    of_reward = " (reward)" * (held_out[0] is None)  # no success is known
    held = next((number(value, 3) + of_reward for value in held_out if value is not None), "-")
    return (
        row["name"],
        row["status"],
        str(row["step"]),
        *("-" if row[key] is None else number(row[key], 3) for key in ("reward", "success")),
        held,
        f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]{of_reward}" if gain else "-",
        row["sandbox"] + " (UNSAFE)" * row["unsafe"] or "-",
        time.strftime("%Y-%m-%d %H:%M", time.localtime(row["changed"])) if row["changed"] else "-",
        row["reason"].partition("\n")[0][:60],
    )
