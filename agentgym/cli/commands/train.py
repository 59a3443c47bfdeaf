"""`agentgym train`: one run, from its recipe to the table of its first and last checkpoint."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli.failures import explain, show
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import Finished, add_recipe_arguments, finish, plan, read_recipe, recipe_help, source_lines
from agentgym.cli.results import HEADER, difference_line, eval_row, train_json
from agentgym.cli.training import default_name, run_training
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe
from agentgym.runs.curve import HELD_OUT, SUCCESS, series, terminal_plot
from agentgym.runs.evaluations import with_held_out
from agentgym.runs.folder import RunFolder, StatusRecord
from agentgym.yaml import dump_yaml

if TYPE_CHECKING:
    from agentgym.jobs.ending import TrainResult

DESCRIPTION = """
Train a policy in an environment. Everything of the run is kept in its folder: the finished config, metrics,
every episode, checkpoints. At the end the first and the last checkpoint play the same held-out tasks with
the same seeds.

Fields of the recipe are set by --section.field VALUE (--help-recipe lists them all).
Ctrl-C or SIGTERM ends the run in order, with exit code 130 or 143; --resume continues from its newest whole
checkpoint, or from that of --from-step; what later steps left is dropped.
"""
EXAMPLES = """
agentgym train --env code_exec
agentgym train --env digits.py:Digits --reward success --reward brief=0.1
agentgym train --env code_exec --seed 1 --name code-1
agentgym train apps/grpo/code_exec_sync.yaml --loop.steps 20 --optimizer.lr 1e-4
agentgym train --env code_exec --dry-run
agentgym train --resume runs/code-1 --loop.steps 120
agentgym train --resume runs/code-1 --from-step 40
"""
TAKES_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    parser.add_argument("recipe_file", nargs="?", metavar="RECIPE", help="the same as --recipe FILE")
    add_recipe_arguments(parser)
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    parser.add_argument("--from-step", type=int, metavar="N", help="with --resume: from the checkpoint of this step")
    parser.add_argument("--runs-dir", metavar="DIR", help="where run folders are made (default: runs)")
    parser.add_argument("--name", help="the run's name (default: environment, date and time)")
    parser.add_argument("--seed", type=int, metavar="N", help="sets loop.seed and trainer.seed")
    parser.add_argument("--dry-run", action="store_true", help="check environment and rewards, show config and plan")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.help_recipe:
        shell.say(recipe_help())
        return 0
    (recipe, sources, registry), earlier = _recipe(arguments, shell)
    name = arguments.name or default_name(recipe)
    path = earlier or Path(recipe.logging.runs_dir) / name
    if arguments.dry_run:
        from agentgym.jobs.gym import check_sampling, prepare

        check_sampling(recipe)
        prepare(recipe, registry)
        return _show_plan(recipe, sources, path, bool(earlier), arguments.json, shell)
    if earlier is None:
        with RunFolder.create(recipe.logging.runs_dir, name, numbered=arguments.name is None) as folder:
            return _train(recipe, sources, folder, registry, arguments, shell, before=None)
    before = RunFolder.open(earlier).status()
    with RunFolder.open(earlier, for_writing=True) as folder:
        return _train(recipe, sources, folder, registry, arguments, shell, before=before)


def _recipe(arguments: argparse.Namespace, shell: JobShell) -> tuple[Finished, Path | None]:
    """With the folder of the run to resume."""
    if arguments.recipe and arguments.recipe_file:
        raise UserError(f"two recipes, {arguments.recipe_file!r} and {arguments.recipe!r}: give one")
    file = arguments.recipe or arguments.recipe_file
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
        return finish(base, flags, arguments, where, shell), None
    given = [flag for flag in ("env", "reward", "runs_dir", "name", "seed") if getattr(arguments, flag) is not None]
    if file or given:
        option = "a recipe" if file else f"--{given[0].replace('_', '-')}"
        raise UserError(
            f"--resume continues with the run's own config, so {option} cannot be given with it; "
            "single fields can be: --loop.steps 200"
        )
    folder = RunFolder.open(arguments.resume)
    if "sft" in folder.load_config():
        raise UserError(f"{arguments.resume} is a run of supervised fine-tuning: agentgym sft --resume {folder.path}")
    where = str(folder.path / "config.yaml")
    recipe, sources, registry = finish(folder.load_config(), {}, arguments, where, shell)
    changed = {key: source for key, source in sources.items() if source != where}
    return (recipe, folder.load_sources() | changed, registry), folder.path


def _show_plan(
    recipe: Recipe, sources: Mapping[str, str], path: Path, resume: bool, as_json: bool, shell: JobShell
) -> int:
    if as_json:
        config = to_mapping(recipe)
        shell.say_json({"run_dir": str(path), "resume": resume, "config": config, "sources": dict(sources)})
        return 0
    shell.say(dump_yaml(to_mapping(recipe)).rstrip())
    shell.say()
    shell.say("\n".join([*source_lines(sources), ""]))
    shell.say("\n".join(["Nothing was started. This would run:", *(f"  {line}" for line in plan(recipe))]))
    shell.say(f"  folder       {path}{' (continued)' if resume else ''}")
    return 0


def _train(
    recipe: Recipe,
    sources: Mapping[str, str],
    folder: RunFolder,
    registry: PluginRegistry,
    arguments: argparse.Namespace,
    shell: JobShell,
    *,
    before: StatusRecord | None,
) -> int:
    """before: the status of the run that is resumed."""
    try:
        reporter = choose_reporter(shell, folder.name, as_json=arguments.json, plain=arguments.plain)
        result = run_training(
            recipe,
            sources,
            folder,
            registry,
            reporter,
            shell.jobs(),
            run_until_stopped,
            before=before,
            from_step=arguments.from_step,
        )
        show_result(result, folder, shell, as_json=arguments.json)
        return 0
    except BaseException as error:
        failure = explain(error)
        show(error, failure, shell.warn, debug=arguments.debug, folder=folder.path)
        if folder.has_state and not failure.is_users:
            shell.warn(f"continue from its last checkpoint: agentgym train --resume {folder.path}")
        return failure.exit_code


def show_result(result: TrainResult, folder: RunFolder, shell: JobShell, *, as_json: bool) -> None:
    """The first and the last checkpoint, and the curve."""
    if as_json:
        shell.say(json.dumps(train_json(result), default=str))
        return
    rows = with_held_out(folder, HELD_OUT)
    measured = [one for one in (result.first, result.last) if one is not None]
    if measured:
        shell.say("\nthe same held-out tasks with the same seeds")
        shell.say_table(HEADER, [eval_row(one) for one in measured])
    if result.difference is not None:
        shell.say(difference_line(result.difference))
    if len(rows) > 2:
        key = HELD_OUT if sum(HELD_OUT in row.metrics for row in rows) > 2 else SUCCESS
        with contextlib.suppress(UserError):  # no success was reported: nothing to draw
            shell.say("\n" + terminal_plot(series(rows, key)))
    drawn = (folder.path / "curve.png").is_file()
    shell.say(f"\nrun       {folder.path}" + ("  (curve.png, metrics.jsonl)" if drawn else ""))
    shell.say(f"episodes  agentgym episodes {folder.path}")
