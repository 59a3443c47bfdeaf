"""`agentgym sft`: supervised fine-tuning on demonstrations, measured before and after in an environment."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from agentgym.cli.jobs import JobShell
from agentgym.cli.recipes import (
    Finished,
    add_machine_arguments,
    device_flags,
    finish,
    read_recipe,
    recipe_help,
    sections,
)
from agentgym.cli.restarts import add_ending_arguments
from agentgym.cli.started import start
from agentgym.cli.trust import add_trust_argument, trusted
from agentgym.commands.parser import Parser
from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder

DESCRIPTION = """
Fine-tune a policy on conversations: of a JSONL file, of the saved episodes of a run that earned enough, or of an
environment that solves its own tasks. Only what the assistant says is trained, tool calls and end tokens included;
the tokens are those that an episode would have. With --env the policy is measured on held-out tasks before and after.

The run's folder is that of `agentgym train`: config, metrics, checkpoints, the conversations themselves. Its last
checkpoint is where `agentgym train --model.path runs/NAME/checkpoints/step-000300` can go on from.

Fields of the recipe are set by --section.field VALUE (--help-recipe lists them all).
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


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "recipe", nargs="*", metavar="RECIPE", help="a recipe in YAML; of several, the later changes the earlier"
    )
    parser.add_argument("--config", metavar="FILE", help="the same as RECIPE")
    parser.add_argument(
        "--data", action="append", metavar="FILE", help='JSONL: a row is {"messages": [...], "tools": [...]}'
    )
    parser.add_argument(
        "--from", action="append", dest="episodes", metavar="RUN", help="a run whose saved episodes are imitated"
    )
    parser.add_argument(
        "--min-reward", type=float, metavar="R", help="the least reward of such an episode (default: 1)"
    )
    parser.add_argument(
        "--oracle", type=int, metavar="N", help="N training tasks, as the environment's own `solve` does them"
    )
    parser.add_argument(
        "--env", metavar="NAME", help="measure in it before and after; also whose oracle is asked (my_env.py:Guess)"
    )
    parser.add_argument("--set", metavar="KEY=VALUE", help="set a field of the recipe; also as --section.field VALUE")
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    parser.add_argument("--from-step", type=int, metavar="N", help="with --resume: from the checkpoint of this step")
    parser.add_argument("--runs-dir", metavar="DIR", help="where run folders are made (default: runs)")
    parser.add_argument("--name", help="the run's name (default: environment, date and time)")
    parser.add_argument("--seed", type=int, metavar="N", help="sets sft.seed and trainer.seed")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for scripts")
    parser.add_argument("--plain", action="store_true", help="plain lines, also in a terminal")
    parser.add_argument("--help-recipe", action="store_true", help="list all fields of a recipe, then end")
    parser.sections = partial(sections, "sft")
    parser.add_argument("--dry-run", action="store_true", help="show config and plan")
    add_ending_arguments(parser)
    add_machine_arguments(parser)
    add_trust_argument(parser)
    parser.set_defaults(agent=None, reward=None)  # these are given in a file: the sections agent and rewards


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.help_recipe:
        shell.say(recipe_help("sft"))
        return 0
    finished, earlier = _recipe(arguments, shell)
    if not arguments.dry_run and (arguments.gpus is not None or arguments.gpu_memory is not None):
        raise UserError("--gpus and --gpu-memory are of a machine that is only planned for: give --dry-run too")
    return start(finished, earlier, arguments, shell, command="sft")


def _recipe(arguments: argparse.Namespace, shell: JobShell) -> tuple[Finished, Path | None]:
    """With the folder of the run to resume."""
    flags = {
        "sft.data": arguments.data,
        "sft.episodes": arguments.episodes,
        "sft.min_reward": arguments.min_reward,
        "sft.oracle_tasks": arguments.oracle,
        "env.name": arguments.env,
        "sft.seed": arguments.seed,
        "trainer.seed": arguments.seed,
        "logging.runs_dir": arguments.runs_dir,
    }
    if arguments.config and arguments.recipe:
        raise UserError(f"two recipes, {arguments.recipe[0]!r} and --config {arguments.config!r}: give one")
    file = arguments.config or arguments.recipe
    given = {key: value for key, value in flags.items() if value is not None}
    if not arguments.resume:
        if arguments.from_step is not None:
            raise UserError("--from-step says where to continue a run: give the run with --resume RUN")
        base, where = read_recipe(file)
        return finish(base, given | device_flags(base, arguments), arguments, where, shell, command="sft"), None
    if file or given or arguments.name:
        what = "a recipe" if file else next(iter(given), "--name")
        raise UserError(
            f"--resume continues with the run's own config and conversations, so {what} cannot be given with it; "
            "other fields can be: --sft.epochs 4"
        )
    folder = RunFolder.open(arguments.resume)
    config, where = folder.load_config(), str(folder.path / "config.yaml")
    if "sft" not in config:
        raise UserError(f"{arguments.resume} was not made by `agentgym sft`: agentgym train --resume {folder.path}")
    trusted(folder.path, config, trust=arguments.trust, shell=shell)
    recipe, sources, registry = finish(config, {}, arguments, where, shell, command="sft")
    changed = {key: source for key, source in sources.items() if source != where}
    return (recipe, folder.load_sources() | changed, registry), folder.path
