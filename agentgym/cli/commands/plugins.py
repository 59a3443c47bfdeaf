"""`agentgym plugins`: what is installed, and whether it works."""

from __future__ import annotations

import argparse

from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.components import SEAMS
from agentgym.errors import UserError, nearest
from agentgym.hooks import PluginRecord, PluginStatus

DESCRIPTION = """
List the plugins: environments, rewards, sandboxes, metric sinks, losses, advantages, task samplers, generator
engines and weight stores, our own and those of other packages. Without options none of them is imported. --check
imports each, and the components that it names, and shows what it provides or why it fails; the exit code is 1 when
one fails.
"""
EXAMPLES = """
agentgym plugins
agentgym plugins --check
agentgym plugins --check --trace code_exec
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--check", action="store_true", help="import every plugin")
    parser.add_argument("--trace", metavar="NAME", help="the full traceback of a plugin that failed")
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    registry = shell.plugins()
    if arguments.check or arguments.trace:
        registry.load_all()
        registry.check_components()
    records = sorted(registry.records, key=lambda record: (record.name, record.distribution))
    if arguments.trace:
        return _show_trace(arguments.trace, records, shell)
    failed = [r for r in records if r.status in (PluginStatus.FAILED, PluginStatus.DUPLICATE)]
    if arguments.json:
        shell.say_json([_as_json(record) for record in records])
        return 1 if failed else 0
    header = ["plugin", "status", "distribution", "version", "entry point"]
    rows = [[r.name, r.status.value, r.distribution, r.version, r.target] for r in records]
    if arguments.check:
        header.append("provides")
        rows = [[*row, ", ".join(r.provides)] for row, r in zip(rows, records, strict=True)]
    shell.say_table(header, rows)
    for record in failed:
        shell.say(shell.paint.red(f"\n{record.name}: {record.error}"))
        if record.trace:
            shell.say(f"  agentgym plugins --trace {record.name} shows where")
    shell.say("\nbuilt in")
    shell.say_table(["kind", "names"], [[kind, ", ".join(seam.builtin)] for kind, seam in SEAMS.items()])
    if not arguments.check:
        shell.say("\nNo plugin was imported; --check imports them and shows what they provide.")
    return 1 if failed else 0


def _show_trace(name: str, records: list[PluginRecord], shell: Shell) -> int:
    found = [record for record in records if record.name == name]
    if not found:
        raise UserError(f"no plugin {name!r}.{nearest(name, [record.name for record in records])}")
    for record in found:
        shell.say(record.trace.rstrip() or f"{record.origin} is {record.status.value}: no error")
    return 1 if any(record.trace for record in found) else 0


def _as_json(record: PluginRecord) -> dict[str, object]:
    return {
        "name": record.name,
        "status": record.status.value,
        "distribution": record.distribution,
        "version": record.version,
        "entry_point": record.target,
        "provides": list(record.provides),
        "error": record.error,
    }
