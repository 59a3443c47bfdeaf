"""`agentgym train`: one run, from its recipe to the table of its first and last checkpoint."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli.failures import Failure, explain, show
from agentgym.cli.jobs import JobShell
from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import (
    add_recipe_arguments,
    check_names,
    finish,
    plan,
    read_recipe,
    recipe_help,
    source_lines,
)
from agentgym.cli.reporters import choose_reporter
from agentgym.cli.results import HEADER, difference_line, eval_row, train_json
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import run_until_stopped
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import local_folder
from agentgym.recipe import Recipe
from agentgym.runs.curve import HELD_OUT, SUCCESS, series, terminal_plot, write_png
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord
from agentgym.runs.report import Reporter
from agentgym.yaml import dump_yaml

if TYPE_CHECKING:
    from agentgym.jobs.train import TrainResult

DESCRIPTION = """
Train a policy in an environment. Everything of the run is kept in its folder: the finished config, metrics,
every episode, checkpoints. At the end the first and the last checkpoint play the same held-out tasks with
the same seeds.

Fields of the recipe are set by --section.field VALUE (--help-recipe lists them all).
Ctrl-C or SIGTERM ends the run in order, with exit code 130 or 143; --resume goes on from its last checkpoint.
"""
EXAMPLES = """
agentgym train --env code_exec
agentgym train --env math --seed 1 --name math-1
agentgym train apps/grpo/code_exec_sync.yaml --loop.steps 20 --optimizer.lr 1e-4
agentgym train --env code_exec --dry-run
agentgym train --resume runs/math-1 --loop.steps 120
"""
TAKES_OVERRIDES = True


def add_arguments(parser: Parser) -> None:
    parser.add_argument("recipe_file", nargs="?", metavar="RECIPE", help="the same as --recipe FILE")
    add_recipe_arguments(parser)
    parser.add_argument("--resume", metavar="RUN", help="go on with the run in this folder")
    parser.add_argument("--runs-dir", metavar="DIR", help="where run folders are made (default: runs)")
    parser.add_argument("--name", help="the run's name (default: environment, date and time)")
    parser.add_argument("--seed", type=int, metavar="N", help="sets loop.seed and trainer.seed")
    parser.add_argument("--dry-run", action="store_true", help="show the config and what would be started")


def run(arguments: argparse.Namespace, shell: JobShell) -> int:
    if arguments.help_recipe:
        shell.say(recipe_help())
        return 0
    recipe, sources, earlier = _recipe(arguments, shell)
    registry = shell.plugins(recipe.plugins.disabled)
    check_names(recipe, registry)
    local_folder(recipe.model.path)  # raises for a path where nothing is
    name = arguments.name or f"{recipe.env.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = earlier or Path(recipe.logging.runs_dir) / name
    if arguments.dry_run:
        return _show_plan(recipe, sources, path, bool(earlier), arguments.json, shell)
    if earlier is None:
        with RunFolder.create(recipe.logging.runs_dir, name) as folder:
            return _train(recipe, sources, folder, registry, arguments, shell, before=None)
    before = RunFolder.open(earlier).status()
    with RunFolder.open(earlier, for_writing=True) as folder:
        return _train(recipe, sources, folder, registry, arguments, shell, before=before)


def _recipe(arguments: argparse.Namespace, shell: JobShell) -> tuple[Recipe, dict[str, str], Path | None]:
    """The recipe, where its fields come from, and the folder of the run to resume."""
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
        base, where = read_recipe(file)
        return *finish(base, flags, arguments, where, shell.plugins), None
    given = [flag for flag in ("env", "runs_dir", "name", "seed") if getattr(arguments, flag) is not None]
    if file or given:
        option = "a recipe" if file else f"--{given[0].replace('_', '-')}"
        raise UserError(
            f"--resume goes on with the run's own config, so {option} can't be given with it; "
            "single fields can be: --loop.steps 200"
        )
    folder = RunFolder.open(arguments.resume)
    where = str(folder.path / "config.yaml")
    recipe, sources = finish(folder.load_config(), {}, arguments, where, shell.plugins)
    changed = {key: source for key, source in sources.items() if source != where}
    return recipe, folder.load_sources() | changed, folder.path


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
    shell.say(f"  folder       {path}{' (going on)' if resume else ''}")
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
    resume = before is not None
    reporter = choose_reporter(shell, folder.name, as_json=arguments.json, plain=arguments.plain)

    def warn(text: str) -> None:
        reporter.note(text)
        with contextlib.suppress(OSError):  # a full disk may be what it is about
            folder.event(text)

    try:
        with contextlib.closing(reporter), warnings_to(warn):
            folder.save_config(to_mapping(recipe), sources)
            folder.set_status(RunStatus.RUNNING)
            folder.event("resumed" if resume else "started")
            for line in plan(recipe):
                reporter.note(line)
            reporter.note(f"folder       {folder.path}")
            job = shell.jobs().train(recipe, folder, reporter, resume=resume, registry=registry)
            result = run_until_stopped(job, reporter.note)
            _finish(result, folder, reporter, shell, as_json=arguments.json)
        return 0
    except BaseException as error:
        failure = explain(error)
        _record_failure(failure, folder, before)
        show(error, failure, shell.warn, debug=arguments.debug, folder=folder.path)
        if (folder.path / "state.json").is_file() and not failure.is_users:
            shell.warn(f"go on from its last checkpoint: agentgym train --resume {folder.path}")
        return failure.exit_code


def _finish(
    result: TrainResult, folder: RunFolder, reporter: Reporter, shell: JobShell, *, as_json: bool
) -> None:
    folder.set_status(RunStatus.DONE)
    folder.event("done")
    rows = folder.read_metrics()
    drawn = False
    if rows:
        try:
            write_png(rows, folder.path / "curve.png", folder.name)
            drawn = True
        except UserError as error:
            reporter.note(f"no picture: {error}")
    if as_json:
        shell.say(json.dumps(train_json(result), default=str))
        return
    reporter.close()  # from here on the terminal is ours again
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
    shell.say(f"\nrun       {folder.path}" + ("  (curve.png, metrics.jsonl)" if drawn else ""))
    shell.say(f"episodes  agentgym episodes {folder.path}")


def _record_failure(failure: Failure, folder: RunFolder, before: StatusRecord | None) -> None:
    """Leave in the folder what happened. A resume that was refused changes nothing about the run."""
    if failure.is_users and before is not None and before.status is not RunStatus.RUNNING:
        status, reason = before.status, before.reason
        status = RunStatus.FAILED if status is RunStatus.LOST else status
    else:
        status = RunStatus.INTERRUPTED if failure.is_interrupt else RunStatus.FAILED
        reason = failure.message
    with contextlib.suppress(Exception):  # a full disk may be why we are here
        folder.set_status(status, reason)
        folder.event(failure.message)
