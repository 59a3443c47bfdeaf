"""`agentgym runs curve`: a run's metrics as a picture and in the terminal."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from agentgym.cli.results import difference_line
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError
from agentgym.evals.statistics import PairedDifference
from agentgym.runs.changes import read_changes
from agentgym.runs.curve import HELD_OUT, HELD_OUT_REWARD, LOSS, REWARD, SUCCESS, series, terminal_plot, write_png
from agentgym.runs.evaluations import held_out_metric, with_held_out
from agentgym.runs.folder import RunFolder

DESCRIPTION = """
Draw a run's curves in the terminal, and reward, success and held-out success into a PNG. The run may still be
running. Where settings were changed while it went on (agentgym runs steer), the curves are marked.
"""
EXAMPLES = """
agentgym runs curve runs/math-1
agentgym runs curve runs/math-1 --metric train/entropy --metric train/mismatch_kl
agentgym runs curve runs/math-1 --png picture.png
agentgym runs curve runs/math-1 --list
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--metric",
        action="append",
        metavar="KEY",
        help="what to draw in the terminal; may be repeated (default: reward and success, or the loss)",
    )
    parser.add_argument("--png", metavar="FILE", help="default: curve.png in the run's folder")
    parser.add_argument("--list", action="store_true", help="list the metrics that the run has")
    parser.add_argument("--json", action="store_true", help="the numbers instead of a drawing")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    folder = RunFolder.open(arguments.run)
    rows = with_held_out(folder)
    known, changes = sorted({key for row in rows for key in row.metrics}), read_changes(folder.path)
    if arguments.list:
        shell.say_json(known) if arguments.json else shell.say("\n".join(known))
        return 0
    default = [key for key in (REWARD, SUCCESS, HELD_OUT, HELD_OUT_REWARD, LOSS) if key in known] or [REWARD]
    lines = [series(rows, key) for key in arguments.metric or default]
    if arguments.json:
        curves = {line.key: {"steps": line.steps, "values": line.values} for line in lines}
        shell.say_json(curves | ({"changes": [asdict(one) for one in changes]} if changes else {}))
        return 0
    for line in lines:
        shell.say(terminal_plot(line, marks=changes))
        shell.say(f"first {line.values[0]:.4g}  last {line.values[-1]:.4g}  best {max(line.values):.4g}\n")
    comparison = folder.load_comparison()
    if difference := comparison.get("difference"):
        measure = "reward" if HELD_OUT_REWARD in held_out_metric(comparison.get("last")) else "success"
        found = PairedDifference(**cast("dict[str, Any]", difference))
        shell.say(difference_line(found, f"{measure}, last minus first, task by task") + "\n")
    path = Path(arguments.png) if arguments.png else folder.path / "curve.png"
    if not path.parent.is_dir():
        raise UserError(f"--png: there is no folder {str(path.parent)!r}")
    write_png(rows, path, folder.name, changes)
    shell.say(f"picture: {path}")
    return 0
