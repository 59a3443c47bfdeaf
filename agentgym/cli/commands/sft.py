"""`agentgym sft`: supervised fine-tuning on demonstrations, measured before and after in an environment."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import add_recipe_arguments
from agentgym.cli.started import add_run_arguments, start
from agentgym.commands.parser import Parser

DESCRIPTION = """
Fine-tune a policy on conversations: of a JSONL file, of the saved episodes of a run that earned enough, or of an
environment that solves its own tasks. Only what the assistant says is trained, tool calls and end tokens included;
the tokens are those that an episode would have. With --env the policy is measured on held-out tasks before and after.

The run's folder is that of `agentgym train`: config, metrics, checkpoints, the conversations themselves. Its last
checkpoint is where `agentgym train --model.path runs/NAME/checkpoints/step-000300` can go on from.

Fields of the recipe are set by --section.field VALUE; `agentgym settings` says what each of them does.
"""
EXAMPLES = """
agentgym sft --env code_exec --oracle 2000 --model.path Qwen/Qwen3-0.6B
agentgym sft --data talks.jsonl --data more.jsonl --sft.epochs 2
agentgym sft --data talks.jsonl --env math --name warm
agentgym sft --from runs/math-1 --min-reward 1 --env math
agentgym sft apps/sft/warm_start.yaml --dry-run
agentgym sft --resume runs/warm --sft.epochs 4
"""
TAKES_OVERRIDES = True
OPTIONS: Mapping[str, Sequence[str]] = {
    "data": ["sft.data"],
    "from": ["sft.episodes"],
    "min_reward": ["sft.min_reward"],
    "oracle": ["sft.oracle_tasks"],
    "env": ["env.name"],
    "seed": ["sft.seed", "trainer.seed"],
}
"""Options of the recipe, and the fields that they set."""


def add_arguments(parser: Parser) -> None:
    add_recipe_arguments(parser, "sft")
    parser.add_argument(
        "--data", action="append", metavar="FILE", help='JSONL: a row is {"messages": [...], "tools": [...]}'
    )
    parser.add_argument("--from", action="append", metavar="RUN", help="a run whose saved episodes are imitated")
    parser.add_argument(
        "--min-reward", type=float, metavar="R", help="the least reward of such an episode (default: 1)"
    )
    parser.add_argument(
        "--oracle", type=int, metavar="N", help="N training tasks, as the environment's own `solve` does them"
    )
    add_run_arguments(parser, "sft")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    return start("sft", OPTIONS, arguments, shell)
