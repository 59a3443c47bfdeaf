"""`agentgym settings`: what can be set in a recipe, and what each setting does."""

from __future__ import annotations

import argparse

from agentgym.cli.settings import Group, look_up, setting_lines
from agentgym.cli.settings_page import page
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell

DESCRIPTION = """
Show what can be set in a recipe: the sections, the settings of one, of a component such as a loss, of an environment
or a sandbox, each with its type, its default and what it does. Any other word lists the settings that mention it.
A setting is set as --section.field VALUE on the command line, or in a recipe's YAML.
"""
EXAMPLES = """
agentgym settings                       the sections
agentgym settings rollout               the settings of a section
agentgym settings loop.max_staleness    one setting
agentgym settings loss.gspo             a component's settings, by name or import path
agentgym settings env.math              an environment's options; sandbox.docker: a sandbox's
agentgym settings timeout               every setting that mentions a word
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "key", nargs="?", default="", metavar="KEY", help="a section, a setting, a component, or a word"
    )
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")
    parser.add_argument("--markdown", action="store_true", help="all settings as docs/settings.md has them")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    registry = shell.plugins()
    if arguments.markdown:
        shell.say(page(registry).rstrip())
        return 0
    groups = look_up(arguments.key, registry)
    if arguments.json:
        shell.say_json([one.as_json() for group in groups for one in group.settings] or dict(groups[0].more))
        return 0
    shell.say("\n\n".join(_shown(group, shell) for group in groups))
    return 0


def _shown(group: Group, shell: Shell) -> str:
    title = shell.paint.bold(group.key) + (f": {group.text}" if group.text else "")
    lines = [title] if group.key and (group.text or not group.settings or group.settings[0].key != group.key) else []
    lines += setting_lines(group.settings, shell)
    if not group.settings and group.key:
        lines.append("  It has no settings.")
    if group.more:
        width = max(map(len, group.more))
        lines += ["", "More:"] if group.settings else []
        lines += [f"  {shell.paint.cyan(key.ljust(width))}  {text}".rstrip() for key, text in group.more.items()]
        lines += ["", f"`agentgym settings {next(iter(group.more))}` shows the settings of one of them."]
    return "\n".join(lines)
