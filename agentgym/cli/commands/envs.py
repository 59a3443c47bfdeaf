"""`agentgym envs`: the environments, and what their tasks look like."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentgym.agents import ProgramEnvironment
from agentgym.cli import environment_checks, environment_server
from agentgym.cli.settings import setting_lines
from agentgym.cli.shown_tools import tool_line, tools_of
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.config import apply_overrides
from agentgym.config_docs import Setting, options_of
from agentgym.env import default_weights
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry, PluginStatus
from agentgym.rollout.environments import build_environment
from agentgym.rollout.tasks import drawn
from agentgym.tables.environments import env_rows, first_line, task_json
from agentgym.types import Json, Split, Task

DESCRIPTION = """
`agentgym envs` lists the environments, and what some of them need installed; `agentgym envs show ENV` prints the
options of one and some of its tasks, as the agent gets them; `agentgym envs check ENV` plays one without any model and
looks for faults; `agentgym envs serve ENV` serves one to OpenEnv's clients. ENV may be an import path, as in
my_env.py:GuessNumber. Options of the environment are given as --env.options.NAME VALUE.
"""
EXAMPLES = """
agentgym envs
agentgym envs show code_exec
agentgym envs show math --tasks 5 --split train --seed 3 --answers
agentgym envs show code_exec --env.options.source jsonl --env.options.path tasks.jsonl
agentgym envs check math
agentgym envs serve tool_use
"""
SHOW_EXAMPLES = """
agentgym envs show math
agentgym envs show math --tasks 5 --split train --seed 3 --answers --env.options.levels [1]
"""
TAKES_OVERRIDES = True
CLASH = "several plugins"
HEADER = ("environment", "from", "turns", "rewards", "what it is")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="for scripts: JSON on standard output")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    listing = actions.add_parser("list", help="all environments", description="All environments.", examples="")
    listing.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="JSON on standard output")
    show = actions.add_parser(
        "show", help="options and tasks of one", description="Options and tasks of one.", examples=SHOW_EXAMPLES
    )
    _add_show_arguments(show)
    check = actions.add_parser(
        "check",
        help="play one without any model, look for faults",
        description=environment_checks.DESCRIPTION.strip(),
        examples=environment_checks.EXAMPLES,
    )
    environment_checks.add_arguments(check)
    serve = actions.add_parser(
        "serve",
        help="serve one to OpenEnv's clients",
        description=environment_server.DESCRIPTION.strip(),
        examples=environment_server.EXAMPLES,
    )
    environment_server.add_arguments(serve)
    for inner in (listing, show, check, serve):
        inner.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show an error's traceback")


def _add_show_arguments(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="ENV", help="a name, or an import path")
    parser.add_argument("--tasks", type=int, default=2, metavar="N", help="how many (default 2)")
    parser.add_argument("--split", choices=("train", "test"), default="test", help="default: test")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the tasks' order (default 0)")
    parser.add_argument("--answers", action="store_true", help="also what the agent never sees")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    if arguments.action == "check":
        return environment_checks.run(arguments, shell)
    if arguments.action == "serve":
        return environment_server.run(arguments, shell)
    registry = shell.plugins()
    if arguments.action != "show":
        if arguments.overrides:
            raise UserError("`agentgym envs list` takes no fields; did you mean `envs show ENV`?")
        return _list(registry, arguments.json, shell)
    return _show(registry, arguments, shell)


def _show(registry: PluginRegistry, arguments: argparse.Namespace, shell: Shell) -> int:
    if not arguments.name:
        raise UserError(f"`agentgym envs show` needs a name: {', '.join(registry.names('environments'))}")
    if arguments.tasks < 1:
        raise UserError(f"--tasks is {arguments.tasks}; give at least 1")
    environment = build_environment(registry, arguments.name, _options(arguments.overrides))
    tasks = itertools.islice(drawn(environment, cast(Split, arguments.split), arguments.seed), arguments.tasks)
    if arguments.json:
        for task in tasks:
            shown = task_json(task) | {"tools": list(tools_of(environment, task))}
            if not arguments.answers:
                del shown["answer"]
            shell.say(json.dumps(shown, default=repr))
        return 0
    factory = registry.environment(arguments.name)
    shell.say(f"{shell.paint.bold(arguments.name)}: {first_line(factory) or first_line(environment)}")
    rewards = ", ".join(f"{name} x {weight:g}" for name, weight in default_weights(environment).items())
    own = isinstance(environment, ProgramEnvironment)
    turns = "played by its own program" if own else f"at most {environment.max_turns} turn(s)"
    shell.say(f"{turns}; rewards: {rewards}")
    if environment.requirements:
        shell.say(f"needs: {environment.requirements}")
    _show_options(options_of(factory), shell)
    for task in tasks:
        _show_task(task, arguments.answers, shell)
        if tools := tools_of(environment, task):
            shell.say(shell.paint.cyan("[tools]"))
            shell.say("\n".join(map(tool_line, tools)))
    return 0


def _list(registry: PluginRegistry, as_json: bool, shell: Shell) -> int:
    rows = env_rows(registry)
    if as_json:
        shell.say_json(rows)
        return 0
    shell.say_table(HEADER, [_cells(row) for row in rows])
    if needing := [row for row in rows if row["requirements"]]:
        shell.say(shell.paint.bold("\nTo be installed or fetched first:"))
        width = max(len(row["name"]) for row in needing)
        shell.say("\n".join(f"  {row['name']:<{width}}  {row['requirements']}" for row in needing))
    for row in rows:
        if row["error"]:
            shell.say(shell.paint.red(f"\n{row['error']}"))
    failed = [record for record in registry.records if record.status in (PluginStatus.FAILED, PluginStatus.DUPLICATE)]
    if failed:
        shell.say(f"\n{len(failed)} plugin(s) did not load: agentgym plugins --check")
    return 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A function is known only when it is called, and an environment of several plugins not at all."""
    if row["error"]:
        return (row["name"], CLASH, "?", "?", "")
    turns = "?" if row["max_turns"] is None else str(row["max_turns"])
    return (row["name"], row["distribution"], turns, ", ".join(row["rewards"]) or "?", row["summary"])


def _options(overrides: list[str]) -> Mapping[str, Json]:
    given = apply_overrides({"env": {"options": {}}}, overrides)
    env = given["env"]
    options = env["options"] if isinstance(env, Mapping) and len(env) == 1 else None
    if len(given) > 1 or not isinstance(options, Mapping):
        raise UserError("only --env.options.NAME VALUE can be set here")
    return options


def _show_options(options: Sequence[Setting], shell: Shell) -> None:
    if options:
        shell.say(shell.paint.bold("\noptions, given as --env.options.NAME VALUE:"))
        shell.say("\n".join(setting_lines(options, shell)))


def _show_task(task: Task, with_answer: bool, shell: Shell) -> None:
    shell.say(shell.paint.bold(f"\n── {task.task_id}  ({task.split}, difficulty {task.difficulty})"))
    for message in task.prompt:
        shell.say(shell.paint.cyan(f"[{message['role']}]"))
        shell.say(message["content"])
    if with_answer:
        shell.say(shell.paint.cyan("[answer]"))
        shell.say(json.dumps(task.answer, indent=1, default=repr))
