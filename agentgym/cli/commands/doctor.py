"""`agentgym doctor`: what is here, what is missing, how to get it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from agentgym.cli import checks as look
from agentgym.cli.checks import Check, Level
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.stopping import run_until_stopped
from agentgym.commands.text import wrap
from agentgym.errors import pip_install

DESCRIPTION = """
Look at this machine: Python, packages, engines, GPU, memory, disk, the hub, sandboxes, plugins. Exit code 0 when
`agentgym train` has all it needs, 1 when something is missing. Nothing is changed.
"""
EXAMPLES = """
agentgym doctor
agentgym doctor --json
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--runs-dir", default=".", metavar="DIR", help="whose disk is looked at (default: .)")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    registry = shell.plugins()
    checks = [
        look.check_python(),
        *map(look.check_package, look.PACKAGES),
        look.check_engines(),
        look.check_gpus(),
        look.check_cores(),
        look.check_memory(),
        look.check_space("/dev/shm", Path("/dev/shm"), 0.25, "weights pass through it: docker run --shm-size 1g"),
        look.check_sockets(),
        look.check_space("disk", Path(arguments.runs_dir), 1.0, "make room for run folders"),
        look.check_hub(),
        *run_until_stopped(look.check_sandboxes(registry), shell.warn),
        look.check_plugins(registry),
    ]
    missing = [check for check in checks if check.level is Level.MISSING]
    if arguments.json:
        shell.say_json([asdict(check) for check in checks])
        return 1 if missing else 0
    _show(checks, shell)
    if missing:
        shell.say(f"\nagentgym train can't run here: {', '.join(check.name for check in missing)} missing.")
        if {check.name for check in missing} & {package.distribution for package in look.PACKAGES}:
            shell.say(f"All Python packages for training: {pip_install('train')}")
        return 1
    shell.say("\nagentgym train has all it needs.")
    return 0


def _show(checks: list[Check], shell: Shell) -> None:
    paint = shell.paint
    colours = {Level.OK: paint.green, Level.NOTE: paint.yellow, Level.MISSING: paint.red}
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = colours[check.level](check.level.value.ljust(7))
        found = check.found
        if shell.is_terminal:
            found = wrap(found, shell.width, " " * (width + 11)).lstrip()
        shell.say(f"{mark}  {check.name.ljust(width)}  {found}")
        for line in check.remedy.splitlines():
            shell.say(f"{' ' * (width + 11)}{paint.dim('> ' + line)}")
