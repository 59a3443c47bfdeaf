"""`agentgym train`: one run, from its recipe to the table of its first and last checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import (
    Finished,
    add_machine_arguments,
    add_recipe_arguments,
    device_flags,
    finish,
    read_recipe,
    recipe_help,
)
from agentgym.cli.restarts import add_ending_arguments
from agentgym.cli.started import start
from agentgym.cli.trust import add_trust_argument, trusted
from agentgym.commands.parser import Parser
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder

DESCRIPTION = """
Train a policy in an environment. Everything of the run is kept in its folder: the finished config, metrics,
every episode, checkpoints. At the end the first and the last checkpoint play the same held-out tasks with
the same seeds.

Fields of the recipe are set by --section.field VALUE (--help-recipe lists them all).
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


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "recipe_files", nargs="*", metavar="RECIPE", help="as --recipe FILE; of several, the later changes the earlier"
    )
    add_recipe_arguments(parser)
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    parser.add_argument("--from-step", type=int, metavar="N", help="with --resume: from the checkpoint of this step")
    parser.add_argument("--runs-dir", metavar="DIR", help="where run folders are made (default: runs)")
    parser.add_argument("--name", help="the run's name (default: environment, date and time)")
    parser.add_argument("--seed", type=int, metavar="N", help="sets loop.seed and trainer.seed")
    parser.add_argument(
        "--dry-run", action="store_true", help="check environment, rewards and memory, show config and plan"
    )
    add_ending_arguments(parser)
    add_machine_arguments(parser)
    add_trust_argument(parser)


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.help_recipe:
        shell.say(recipe_help())
        return 0
    finished, earlier = _recipe(arguments, shell)
    if arguments.dry_run:
        from agentgym.data_sets import OutOfReach
        from agentgym.run.gym import refuse_long_prompts
        from agentgym.run.settle import check_sampling

        recipe, _, registry = finished
        check_sampling(recipe)
        try:
            held_out = refuse_long_prompts(recipe, registry)
        except OutOfReach:  # the plan is worth having without the environment's data, too
            start(finished, earlier, arguments, shell, command="train")
            raise
        return start(finished, earlier, arguments, shell, command="train", held_out=held_out)
    if arguments.gpus is not None or arguments.gpu_memory is not None:
        raise UserError("--gpus and --gpu-memory are of a machine that is only planned for: give --dry-run too")
    return start(finished, earlier, arguments, shell, command="train")


def _recipe(arguments: argparse.Namespace, shell: JobShell) -> tuple[Finished, Path | None]:
    """With the folder of the run to resume."""
    if arguments.recipe and arguments.recipe_files:
        raise UserError(f"two recipes, {arguments.recipe_files[0]!r} and --recipe {arguments.recipe!r}: give one")
    file = arguments.recipe or arguments.recipe_files
    flags = {
        "env.name": arguments.env,
        "loop.seed": arguments.seed,
        "trainer.seed": arguments.seed,
        "logging.runs_dir": arguments.runs_dir,
    }
    if not arguments.resume:
        if arguments.from_step is not None:
            raise UserError("--from-step says where to continue a run: give the run with --resume RUN")
        base, where = read_recipe(file)
        return finish(base, flags | device_flags(base, arguments), arguments, where, shell), None
    names = ("env", "agent", "reward", "runs_dir", "name", "seed")
    given = [flag for flag in names if getattr(arguments, flag) is not None]
    if file or given:
        option = "a recipe" if file else f"--{given[0].replace('_', '-')}"
        raise UserError(
            f"--resume continues with the run's own config, so {option} cannot be given with it; "
            "single fields can be: --loop.steps 200"
        )
    folder = RunFolder.open(arguments.resume)
    config = folder.load_config()
    if "sft" in config:
        raise UserError(f"{arguments.resume} is a run of supervised fine-tuning: agentgym sft --resume {folder.path}")
    where = str(folder.path / "config.yaml")
    trusted(folder.path, config, trust=arguments.trust, shell=shell)
    recipe, sources, registry = finish(config, {}, arguments, where, shell)
    changed = {key: source for key, source in sources.items() if source != where}
    return (recipe, folder.load_sources() | changed, registry), folder.path
