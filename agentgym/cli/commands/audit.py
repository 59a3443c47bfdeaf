"""`agentgym runs audit`: is the folder of a run or an evaluation whole."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from agentgym.commands.findings import say_finding
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap

DESCRIPTION = """
Read the folder of a run or an evaluation and list what is wrong with it: an episode that is there twice, or lost; a
step without metrics, or with two; a checkpoint or an evaluation that is half; an episode that is older than the
staleness bound allows; and what the run left behind: processes, shared memory, containers, unfinished files. Of an
evaluation every sample of every task must be there once, and the result be that of the episodes. Nothing is changed. A
run that is not done is judged up to its newest whole checkpoint, where a resume goes on. The exit code is 1 when
something is wrong.
"""
EXAMPLES = """
agentgym runs audit runs/math-1
agentgym runs audit evals/math-1
agentgym runs audit runs/math-1 --json
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run or an evaluation")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    from agentgym.runs.audit import audit

    found = audit(arguments.run)
    if arguments.json:
        known = {"findings": [one.to_mapping() for one in found.findings], "interrupted": sorted(found.interrupted)}
        shell.say_json(asdict(found) | known)
        return 1 if found.findings else 0
    counts = [
        (found.steps, "steps"),
        (found.trained, "trained episodes"),
        (found.skipped, "skipped ones"),
        (len(found.checkpoints), "whole checkpoints"),
        (len(found.evaluations), "finished evaluation(s)"),
        (found.played, "episodes of evaluations"),
    ]
    judged = ", ".join(f"{count} {what}" for count, what in counts if count) or "nothing"
    shell.say(wrap(f"{arguments.run}: {found.status}; judged are {judged}", shell.width))
    for one in found.findings:
        say_finding(one, shell)
    for note in found.notes:
        shell.say(shell.paint.dim(f"note  {note}"))
    shell.say(f"\n{len(found.findings)} finding(s)" if found.findings else "nothing is wrong")
    return 1 if found.findings else 0
