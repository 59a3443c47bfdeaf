"""`agentgym envs serve`: an environment as an OpenEnv server, for other trainers."""

from __future__ import annotations

import argparse
import importlib.util
import json
from typing import TYPE_CHECKING

from agentgym.cli.commands.serve import is_here, read_key
from agentgym.cli.environment_checks import sections
from agentgym.commands.parser import Parser
from agentgym.commands.shell import Shell
from agentgym.commands.stopping import serve_until_stopped
from agentgym.errors import UserError, pip_install
from agentgym.rollout.text_episode import TextGameConfig

if TYPE_CHECKING:
    from agentgym.serve.openenv_app import OpenEnvApp

DESCRIPTION = """
Serve an environment to OpenEnv's clients and the trainers that use them: one episode at a time
in each WebSocket. A reset's seed draws one of the split's tasks, its task_id chooses one. An environment with tools
takes OpenEnv's tool actions, and `send_message` for what is said; another takes {"message": ...}. The reward is 0.0
until an episode ends, then its weighted sum.

Only this machine can reach it, unless --host says otherwise. Ctrl-C or SIGTERM ends it, with exit code 0.
"""
EXAMPLES = """
agentgym envs serve tool_use
agentgym envs serve math --port 9000 --split test --env.options.levels [1]
agentgym envs serve code_exec --sandbox monty --sessions 256
agentgym envs serve my_env.py:GuessNumber --host 0.0.0.0 --key-file ~/.my-env-key
"""
PORT = 8000


def add_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="ENV", help="a name, or an import path such as my_env.py:GuessNumber")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=PORT, metavar="N", help=f"default {PORT}; 0 is any that is free")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="of the tasks (default train)")
    parser.add_argument("--tasks", type=int, default=256, metavar="N", help="that seeds draw from (default 256)")
    parser.add_argument("--sessions", type=int, default=512, metavar="N", help="at a time, at most (default 512)")
    parser.add_argument(
        "--idle-s", type=float, default=1800, metavar="S", help="a session ends after so long a silence (default 1800)"
    )
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="clients must send its key, as `Authorization: Bearer KEY`; a file that is not there gets a random one",
    )
    parser.add_argument("--sandbox", default="auto", metavar="NAME", help="for code (default auto)")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="JSON on standard output")


def run(arguments: argparse.Namespace, shell: Shell) -> int:
    for package, extra in (("starlette", "serve"), ("uvicorn", "serve"), ("websockets", "openenv")):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"this needs {package}, which is not installed: {pip_install(extra)}")
    from agentgym.http_server import listen
    from agentgym.serve.openenv_app import OpenEnvConfig, serve_openenv

    for flag, value, least in (("tasks", arguments.tasks, 1), ("sessions", arguments.sessions, 1)):
        if value < least:
            raise UserError(f"--{flag} is {value}; give at least {least}")
    if not 0 <= arguments.port < 65536:
        raise UserError(f"--port is {arguments.port}; give 0 to 65535")
    if not arguments.idle_s > 0:
        raise UserError(f"--idle-s is {arguments.idle_s:g}; give more than 0")
    given = sections(arguments.overrides)
    game = TextGameConfig(
        name=arguments.name, split=arguments.split, num_tasks=arguments.tasks, sandbox=arguments.sandbox, **given
    )
    config = OpenEnvConfig(sessions=arguments.sessions, idle_s=arguments.idle_s, key=read_key(arguments.key_file))
    host = arguments.host.strip("[]")
    if not is_here(host) and not config.key:
        shell.warn(f"--host {arguments.host}: whoever reaches the port can play; --key-file FILE asks for a key")
    listening = listen(host, [arguments.port])
    port = listening.getsockname()[1]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    apps: list[OpenEnvApp] = []

    def started(app: OpenEnvApp) -> None:
        apps.append(app)
        shell.say(json.dumps(_as_json(app, url)) if arguments.json else _lines(app, url))

    try:
        serve_until_stopped(serve_openenv(shell.plugins(), game, config, listening, started), shell.warn)
    finally:
        listening.close()
    if not arguments.json:
        shell.say(f"served {sum(app.played for app in apps)} session(s)")
    return 0


def _as_json(app: OpenEnvApp, url: str) -> dict[str, object]:
    environment, game = app.game.environment, app.game
    return {
        "event": "serving", "url": url, "environment": environment.name, "version": environment.version,
        "tools": app.has_tools, "tasks": len(game.tasks), "split": game.config.split,
    }  # fmt: skip


def _lines(app: OpenEnvApp, url: str) -> str:
    environment, game = app.game.environment, app.game
    how = "tool actions" if app.has_tools else "messages"
    return "\n".join([
        f"{environment.name} version {environment.version} is an OpenEnv server at {url}: {how}, "
        f"{len(game.tasks)} tasks of the split {game.config.split}, at most {app.config.sessions} sessions",
        f"  OpenEnv's client  GenericEnvClient(base_url={url!r})",
        f"  check it          openenv validate --url {url}",
        f"  play it           agentgym eval builtin:tiny --env openenv --env.options.url {url}",
        "Ctrl-C ends it.",
    ])  # fmt: skip
