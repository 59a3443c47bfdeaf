"""`agentgym sandbox`: look at sandboxes, build, measure and verify them, run a file in one, clean up."""

from __future__ import annotations

import argparse
import importlib
from typing import cast

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import UserError
from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.commands.action import Action, Request, options_of

ACTIONS = {  # and their modules
    "doctor": "doctor",
    "build": "build",
    "run": "program",
    "bench": "bench",
    "verify": "verify",
    "images": "task_images",
    "clean": "clean",
}
DESCRIPTION = """
Sandboxes run what a policy writes. Each action has its own --help. Options of the sandbox are given as
--sandbox.options.NAME VALUE.
"""
EXAMPLES = """
agentgym sandbox doctor          what is available, and how to get the rest
agentgym sandbox build           get the image, once per machine
agentgym sandbox verify          attack it, and check that it holds
agentgym sandbox bench --quick   measure it
agentgym sandbox run program.py --sandbox monty
agentgym sandbox images          those of tasks: list, build ahead, prune
echo 'print(6 * 7)' | agentgym sandbox run - --wall-s 2
"""
TAKES_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name in ACTIONS:
        action = _action(name)
        inner = actions.add_parser(
            name, help=action.SUMMARY, description=action.DESCRIPTION.strip(), examples=action.EXAMPLES
        )
        action.add_arguments(inner)
        inner.add_argument("--debug", action="store_true", help="show the traceback of an error")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    takes_env = getattr(_action(arguments.action), "ENV_OVERRIDES", False)
    options, env_options = options_of(arguments.overrides, env=takes_env)
    request = Request(
        arguments=arguments, options=options, registry=shell.plugins(), shell=shell, env_options=env_options
    )
    try:
        return run_until_stopped(_action(arguments.action).run(request), shell.warn)
    except SandboxUnavailable as error:  # only when it was used: a module that cannot be preloaded, say
        raise UserError(f"the sandbox is unavailable: {error}") from error


def _action(name: str) -> Action:
    return cast(Action, importlib.import_module(f"agentgym_sandboxes.commands.{ACTIONS[name]}"))
