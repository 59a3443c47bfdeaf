"""What a subcommand is written with: its parser, the shell it prints to, and how it is stopped.

A distribution brings a subcommand by an entry point of the group `agentgym.commands`: its name is the command's, its
value a module with the attributes of `Command`. The module's first docstring line is listed by `agentgym --help`,
which reads it without importing the module.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse

    from agentgym.commands.parser import Parser
    from agentgym.commands.shell import Shell
    from agentgym.commands.stopping import run_until_stopped
    from agentgym.commands.text import commands_in, table_lines, wrap

GROUP = "agentgym.commands"


class Command(Protocol):
    """A command's module. TAKES_OVERRIDES: whether `arguments.overrides` holds its `--section.field value`."""

    DESCRIPTION: str
    EXAMPLES: str
    TAKES_OVERRIDES: bool

    def add_arguments(self, parser: Parser) -> None: ...

    def run(self, arguments: argparse.Namespace, shell: Shell) -> int:
        """Run it; returns the exit code. Raise UserError for the user's mistakes."""


if not TYPE_CHECKING:  # to a type checker, every misspelt name would exist

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: `agentgym --help` needs neither a shell nor an event loop."""
        for module in ("text", "parser", "shell", "stopping") if name in __all__ else ():
            if hasattr(found := importlib.import_module(f"agentgym.commands.{module}"), name):
                return getattr(found, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["GROUP", "Command", "Parser", "Shell", "commands_in", "run_until_stopped", "table_lines", "wrap"]
