"""`agentgym even`: report how long a text is."""

from __future__ import annotations

import argparse

from agentgym.commands import Parser, Shell

DESCRIPTION = "Report how long a text is, and whether that is even."
EXAMPLES = "agentgym even 'some text'"
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("text", metavar="TEXT")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    length = len(arguments.text)
    shell.say(f"{length}: {'odd' if length % 2 else 'even'}")
    return 0
