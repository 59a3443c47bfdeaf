"""Chooses a command's reporter: live in a terminal, lines elsewhere, JSON for scripts."""

from __future__ import annotations

import importlib.util

from agentgym.commands.shell import Shell
from agentgym.runs.report import JsonReporter, PlainReporter, Reporter


def choose_reporter(shell: Shell, title: str, *, as_json: bool, plain: bool) -> Reporter:
    if as_json:
        return JsonReporter(shell.out)
    if plain or not shell.is_terminal or importlib.util.find_spec("rich") is None:
        return PlainReporter(shell.out)
    from agentgym.cli.live import LiveReporter

    return LiveReporter(title, shell.out)
