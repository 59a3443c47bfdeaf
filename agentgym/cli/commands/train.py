"""`agentgym train`: one run, from its recipe to the table of its first and last checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import add_recipe_arguments
from agentgym.cli.started import add_run_arguments, start
from agentgym.commands.parser import Parser

DESCRIPTION = """
Train a policy in an environment. Everything of the run is kept in its folder: the finished config, metrics,
every episode, checkpoints. At the end the first and the last checkpoint play the same held-out tasks with
the same seeds.

Fields of the recipe are set by --section.field VALUE; `agentgym settings` says what each of them does.
Ctrl-C or SIGTERM ends the run in order, with exit code 130 or 143; --resume continues from its newest whole
checkpoint, or from that of --from-step; what later steps left is dropped. With --restarts it is resumed by
itself when it fails or is killed; with --grace SIGTERM has it save first.
"""
EXAMPLES = """
agentgym train --env code_exec
agentgym train --env digits.py:Digits --reward success --reward brief=0.1
agentgym train --env code_exec --seed 1 --name code-1
agentgym train --env tool_use --agent openai_agents
agentgym train apps/grpo/code_exec_sync.yaml --loop.steps 20 --optimizer.lr 1e-4
agentgym train --env code_exec --dry-run
agentgym train apps/grpo/qwen3_0.6b.yaml apps/presets/tasks/tool_use.yaml --dry-run --gpus 2 --gpu-memory 80
agentgym train --resume runs/code-1 --loop.steps 120
agentgym train --resume runs/code-1 --from-step 40
agentgym train --env code_exec --restarts 5 --grace 60
"""
TAKES_OVERRIDES = True
OPTIONS: Mapping[str, Sequence[str]] = {
    "env": ["env.name"],
    "agent": [],
    "reward": [],
    "seed": ["loop.seed", "trainer.seed"],
}
"""Options of the recipe, and the fields that they set; `finish` reads those without."""


def add_arguments(parser: Parser) -> None:
    add_recipe_arguments(parser)
    add_run_arguments(parser, "train")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    return start("train", OPTIONS, arguments, shell)
