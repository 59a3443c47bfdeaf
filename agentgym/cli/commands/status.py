"""`agentgym status`: is a run learning, and what is wrong if not."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from agentgym.commands.findings import say_finding
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap
from agentgym.runs.folder import RunFolder, RunStatus

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
                "findings": [one.to_mapping() for one in found.findings],
            }
        )
        return 0
    shell.say(f"{folder.name}: {status.status.value}, step {step}")
    if alive.text:
        shell.say((shell.paint.red if alive.is_stuck else shell.paint.dim)(wrap(alive.text, shell.width)))
    shell.say(wrap(found.sentence, shell.width))
    for finding in found.findings:
        say_finding(finding, shell)
    return 0
