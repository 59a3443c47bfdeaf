"""`agentgym status`: is a run learning, and what is wrong if not."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap
from agentgym.runs.folder import RunFolder, RunStatus

if TYPE_CHECKING:
    from agentgym.evals.symptoms import Finding

DESCRIPTION = """
Say in one sentence whether a run is learning, with the number and its interval, and list what is wrong or worth
knowing: what was measured, what it means, and which field of the recipe to change. The run may still be running: then
it is said what its processes are doing, and where one is stopped, stuck or dead.
"""
EXAMPLES = """
agentgym status runs/math-1
agentgym status runs/math-1 --json
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    from agentgym.evals.diagnosis import diagnose
    from agentgym.runs.liveness import Liveness, liveness

    folder = RunFolder.open(arguments.run)
    found, status, rows = diagnose(folder), folder.status(), folder.read_metrics()
    step = rows[-1].step if rows else 0
    alive = liveness(folder.path) if status.status is RunStatus.RUNNING else Liveness()
    if arguments.json:
        shell.say_json(
            {
                "run": folder.name,
                "status": status.status.value,
                "step": step,
                "processes": asdict(alive),
                **asdict(found),
            }
        )
        return 0
    shell.say(f"{folder.name}: {status.status.value}, step {step}")
    if alive.text:
        shell.say((shell.paint.red if alive.is_stuck else shell.paint.dim)(wrap(alive.text, shell.width)))
    shell.say(wrap(found.sentence, shell.width))
    for finding in found.findings:
        shell.say(_text(finding, shell))
    return 0


def _text(finding: Finding, shell: Shell) -> str:
    paint = shell.paint
    colours = {"problem": paint.red, "warning": paint.yellow, "note": paint.dim}
    where = f"(steps {finding.steps[0]} to {finding.steps[1]})"
    head = f"{colours[finding.severity](finding.severity)}  {finding.text} {where}"
    lines: Sequence[str] = (finding.meaning, finding.advice)
    fields = f"    fields: {', '.join(finding.fields)}" if finding.fields else ""
    return "\n".join(["", head, *(wrap(line, shell.width, "    ") for line in lines), *([fields] if fields else [])])
