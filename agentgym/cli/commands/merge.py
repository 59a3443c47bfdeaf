"""`agentgym eval merge`: one evaluation of the shards that several machines have played."""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.results import eval_json, show_result
from agentgym.commands.parser import Parser
from agentgym.yaml import value_at

DESCRIPTION = """
Make one evaluation of all shards that `agentgym eval --shard K/N` has played. It equals one that played all tasks on
one machine: the same figures, the same episodes in the same order. All shards are given, each once; they are finished
and of one recipe. They may differ in what is their machine's own: paths, a server's address and limits, prices. Their
folders stay as they are.

A model whose folder is called merge is measured as ./merge.
"""
EXAMPLES = """
agentgym eval runs/math-1 --tasks 5000 --shard 1/2 --name math-1-of-2       # on one machine
agentgym eval runs/math-1 --tasks 5000 --shard 2/2 --name math-2-of-2       # on another
agentgym eval merge evals/math-1-of-2 evals/math-2-of-2 --output evals/math
"""
TAKES_OVERRIDES = False


def add_arguments(parser: Parser) -> None:
    parser.add_argument("shards", nargs="+", metavar="SHARD", help="the folder of each shard")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="of the evaluation; a new one")
    parser.add_argument("--json", action="store_true", help="one JSON object, as of `agentgym eval`")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    from agentgym.evals.merging import merge_shards

    result, folder = merge_shards([Path(one) for one in arguments.shards], Path(arguments.output))
    if arguments.json:
        shell.say(json.dumps(eval_json(result, folder)))
        return 0
    with contextlib.closing(choose_reporter(shell, "merge", as_json=False, plain=True)) as reporter:
        show_result(result, str(value_at(folder.load_config(), "env.name")), folder, reporter)
    return 0
