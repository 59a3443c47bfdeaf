"""`agentgym kata`: judge a function for one of the tasks of kata."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from agentgym import EpisodeContext, UserError
from agentgym.commands import Parser, Shell
from agentgym_kata.environment import Attempt, Kata
from agentgym_kata.plain import Plain

agentgym_api = "0.1"

DESCRIPTION = "Judge a function for a task of the environment kata. It runs with your rights."
EXAMPLES = "agentgym kata 3-4 my_function.py"
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("task", metavar="TASK", help="the factor and the summand, as 3-4")
    parser.add_argument("file", metavar="FILE", type=Path, help="Python that defines f")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    tasks = [*Kata().tasks("train"), *Kata().tasks("test")]
    task = next((one for one in tasks if one.task_id == f"kata/{arguments.task}"), None)
    if task is None:
        raise UserError(f"there is no task {arguments.task!r}; give two numbers, as 3-4")
    context = EpisodeContext[Attempt](task=task, messages=[], sandbox=Plain(trusted=True))

    async def judged() -> str:
        return await (await Kata().start(context)).submit(arguments.file.read_text())

    shell.say(asyncio.run(judged()))
    return 0
