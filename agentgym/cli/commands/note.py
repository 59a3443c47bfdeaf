"""`agentgym runs note`: notes and tags of a run or an evaluation, which the leaderboard shows."""

from __future__ import annotations

import argparse

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder
from agentgym.runs.notes import read_note, write_note

DESCRIPTION = """
Note something about a run or an evaluation, or tag it: `agentgym leaderboard` and the page show it, and find it by
--tag and --search. It is kept in the run's folder (notes.json). Without a text and tags, what is noted is shown.
"""
EXAMPLES = """
agentgym runs note runs/math-1 "learning rate 3e-6, the run of the paper" --tag paper --tag draft
agentgym runs note runs/math-1 --step 20 --tag best
agentgym runs note runs/math-1 --untag draft
agentgym runs note runs/math-1 ""
agentgym runs note runs/math-1
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder of a run or an evaluation")
    parser.add_argument("text", nargs="?", metavar="TEXT", help='replaces what is noted; "" removes it')
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="add a tag; repeatable")
    parser.add_argument("--untag", action="append", default=[], metavar="TAG", help="remove a tag; repeatable")
    parser.add_argument("--step", type=int, metavar="N", help="of a run: note it of its evaluation of this step alone")
    parser.add_argument("--json", action="store_true", help="what is noted then, for scripts")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    folder = RunFolder.open(arguments.run)
    steps = folder.episode_steps(evaluation=True)
    if arguments.step is not None and arguments.step not in steps:
        there = f"of steps {', '.join(map(str, steps))}" if steps else "none"
        raise UserError(f"{arguments.run} has no evaluation of step {arguments.step}; it has {there}")
    if arguments.text is None and not arguments.tag and not arguments.untag:
        note = read_note(folder.path, arguments.step)
    else:
        note = write_note(
            folder.path, step=arguments.step, text=arguments.text, add=arguments.tag, remove=arguments.untag
        )
    if arguments.json:
        shell.say_json({"text": note.text, "tags": note.tags})
    else:
        shell.say(f"note: {note.text or '-'}\ntags: {' '.join(note.tags) or '-'}")
    return 0
