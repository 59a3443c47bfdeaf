"""`agentgym host`: this machine, lent to runs whose controller is elsewhere."""

from __future__ import annotations

import argparse
import contextlib

from agentgym.cli.jobs import JobShell
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import Stopped

PORT = 26600
DESCRIPTION = """
Lend this machine to the run of a controller elsewhere, which has `launcher: attach` with this machine's name: its
trainer or generators are started here. When the controller ends, however it ends, so do they, and this waits for the
next. Ctrl-C or SIGTERM ends it, with exit code 0.

Whoever reaches the port can run any program here: private networks only.
"""
EXAMPLES = """
agentgym host
agentgym host --port 26601
agentgym train apps/grpo/math.yaml --launcher.name attach --launcher.machines [node1,node2:26601]
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"default {PORT}; 0 is any that is free")
    parser.add_argument(
        "--monarch-port", type=int, default=0, metavar="N", help="of the run's messages (default: any that is free)"
    )
    parser.add_argument("--once", action="store_true", help="end when the first controller does")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    from agentgym.run.lending import lend

    shell.goes_on()
    with contextlib.suppress(Stopped):
        lend(arguments.port, arguments.monarch_port, shell.say, once=arguments.once)
    return 0
