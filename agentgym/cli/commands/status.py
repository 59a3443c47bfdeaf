"""`agentgym status`: is a run learning, and what is wrong if not; how far is an evaluation."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentgym.cli.results import eval_table, pass_table
from agentgym.commands.findings import say_finding
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord
from agentgym.runs.report import duration

if TYPE_CHECKING:
    from agentgym.runs.liveness import Liveness

DESCRIPTION = """
Say in one sentence whether a run is learning, with the number and its interval, and list what is wrong or worth
knowing: what was measured, what it means, and which field of the recipe to change. The run may still be running: then
it is said what its processes are doing, and where one is stopped, stuck or dead.

Of an evaluation: how many of its episodes have ended, their success so far with its 95% interval, what broke or was
begun again, and about how long the rest takes.
"""
EXAMPLES = """
agentgym status runs/math-1
agentgym status runs/math-1 --json
agentgym status evals/math-1
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run or an evaluation")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    from agentgym.evals.diagnosis import diagnose
    from agentgym.evals.progress import progress, unfinished_steps
    from agentgym.runs.liveness import Liveness, liveness

    folder = RunFolder.open(arguments.run)
    status = folder.status()
    alive = liveness(folder.path) if status.status is RunStatus.RUNNING else Liveness()
    if folder.is_evaluation:
        return _of_evaluation(folder, status, alive, arguments, shell)
    found, rows = diagnose(folder), folder.read_metrics()
    step = rows[-1].step if rows else 0
    measured = [progress(folder, one) for one in unfinished_steps(folder)]
    if arguments.json:
        shell.say_json(
            {
                "run": folder.name,
                "status": status.status.value,
                "step": step,
                "processes": asdict(alive),
                **asdict(found),
                "findings": [one.to_mapping() for one in found.findings],
                "unfinished": [{"step": one.step, "ended": one.ended, "planned": one.planned} for one in measured],
            }
        )
        return 0
    shell.say(f"{folder.name}: {status.status.value}, step {step}")
    if alive.text:
        shell.say((shell.paint.red if alive.is_stuck else shell.paint.dim)(wrap(alive.text, shell.width)))
    shell.say(wrap(found.sentence, shell.width))
    for one in measured:
        later = "" if status.status is RunStatus.RUNNING else (
            f"; if nothing plays it now, continue it: agentgym eval {folder.path} --every-checkpoint"
        )  # fmt: skip
        shell.say(wrap(f"evaluation of step {one.step}: {one.ended} of {one.planned} episodes{later}", shell.width))
    for finding in found.findings:
        say_finding(finding, shell)
    return 0


def _of_evaluation(
    folder: RunFolder, status: StatusRecord, alive: Liveness, arguments: argparse.Namespace, shell: Shell
) -> int:
    from agentgym.evals.progress import progress

    paths = sorted((folder.path / "evals").glob("step-??????.json"))
    found = [progress(folder, int(path.stem[5:])) for path in paths]
    if arguments.json:
        known = {"run": folder.name, "status": status.status.value, "reason": status.reason}
        shell.say_json({**known, "processes": asdict(alive), "evaluations": [asdict(one) for one in found]})
        return 0
    shell.say(f"{folder.name}: {status.status.value}" + (f", {status.reason}" if status.reason else ""))
    if alive.text:
        shell.say((shell.paint.red if alive.is_stuck else shell.paint.dim)(wrap(alive.text, shell.width)))
    for one in found:
        parts = [f"{one.ended} of {one.planned} episodes ({one.ended / max(1, one.planned):.0%})"]
        parts += [f"{one.retries} begun again"] if one.retries else []
        parts += [f"about {duration(one.left_s)} left"] if one.left_s is not None else []
        shell.say(wrap(f"{one.setup.environment}, version {one.setup.version}: {', '.join(parts)}", shell.width))
        if one.result is not None:
            shell.say_table(*eval_table([one.result]))
            header, shares = pass_table(one.result)
            if shares:
                shell.say_table(header, shares)
        if not one.finished:
            shell.say("Short episodes end first, so these figures may still move.")
    if status.status not in (RunStatus.RUNNING, RunStatus.DONE):
        shell.say(f"continue it: agentgym eval --resume {folder.path}")
    return 0
