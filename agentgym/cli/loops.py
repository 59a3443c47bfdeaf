"""`agentgym.services` and `agentgym.run_loop`: a training loop of one's own, in a folder, from the command line."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from agentgym.cli.failures import explain, show
from agentgym.cli.jobs import Jobs, JobShell, explain_missing
from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import (
    add_machine_arguments,
    add_recipe_arguments,
    device_flags,
    finish,
    places,
    plan,
    read_recipe,
    recipe_help,
)
from agentgym.cli.recording import recorded
from agentgym.cli.script import recipe_of
from agentgym.cli.training import default_name
from agentgym.commands.parser import Parser, split_overrides
from agentgym.commands.stopping import run_until_stopped, stoppable
from agentgym.hooks import PluginRegistry
from agentgym.loops.pieces import Pieces
from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import PlainReporter, Reporter

if TYPE_CHECKING:
    from agentgym.jobs.services import Services


@asynccontextmanager
async def services(
    recipe: Recipe | Mapping[str, object] | str,
    *,
    name: str | None = None,
    reporter: Reporter | None = None,
    pieces: Pieces | None = None,
) -> AsyncIterator[Services]:
    """Start what a recipe names, for a loop of one's own, in a run's folder that `agentgym runs` and `view` show.

    recipe: finished, a mapping of its sections, or a file. name: of the folder; by default from environment, date and
    time. pieces: data sets, functions that score responses, and a buffer's settings. Leaving the block ends all
    processes; an error in it is recorded and raised. Raises UserError for a mistake.
    """
    made = recipe if isinstance(recipe, Recipe) else recipe_of(recipe)
    registry = PluginRegistry.discover(made.plugins.disabled)
    shown = reporter or PlainReporter(sys.stdout)
    with (
        contextlib.closing(shown),
        RunFolder.create(made.logging.runs_dir, name or default_name(made), numbered=not name) as folder,
        recorded(made, {}, folder, None),
    ):
        for line in [*plan(made), f"folder       {folder.path}"]:
            shown.note(line)
        shown.phase("loading torch, torchtitan and Monarch")
        try:
            from agentgym.jobs.services import opened
        except ModuleNotFoundError as error:
            raise explain_missing(error) from error
        async with opened(made, folder, shown, registry, pieces or Pieces()) as found:
            yield found
        folder.set_status(RunStatus.DONE)
        folder.event("done")


def run_loop(loop: Callable[[Recipe], Coroutine[Any, Any, None]], words: Sequence[str] | None = None) -> int:
    """The main program of a file with a loop: `python -m my.loop --config FILE section.field=value`.

    loop: gets the finished recipe; its docstring is the help. words: instead of the command line's. Returns the exit
    code: 0 when it is done, 1 when it failed, 2 for a mistake in what was given, 130 for Ctrl-C.
    """
    given = list(sys.argv[1:] if words is None else words)
    shell = JobShell(out=sys.stdout, err=sys.stderr, jobs=Jobs, plugins=PluginRegistry.discover)
    try:
        with stoppable(), warnings_to(shell.warn):
            arguments = _arguments(loop, given)
            if arguments.help_recipe:
                shell.say(recipe_help())
                return 0
            base, where = read_recipe(arguments.recipe)
            flags = {"env.name": arguments.env} | device_flags(base, arguments)
            recipe, _, _ = finish(base, flags, arguments, where, shell)
            if arguments.dry_run:
                lines = [*plan(recipe), *places(recipe, arguments)]
                shell.say("\n".join(["Nothing was started. This would run:", *(f"  {line}" for line in lines)]))
                return 0
            run_until_stopped(loop(recipe), shell.say)
            return 0
    except SystemExit as end:  # argparse's --help
        return int(end.code or 0)
    except BaseException as error:
        failure = explain(error)
        show(error, failure, shell.warn, debug="--debug" in given, folder=None)
        return failure.exit_code


def _arguments(loop: Callable[..., object], words: list[str]) -> argparse.Namespace:
    spec = getattr(sys.modules.get(loop.__module__), "__spec__", None)
    name = f"python -m {spec.name}" if spec is not None else f"python {sys.argv[0]}"
    text = (loop.__doc__ or "").strip()
    examples = f"{name} --config recipe.yaml loop.steps=20 --trainer.procs 2"
    parser = Parser(prog=name, description=text, examples=examples)
    add_recipe_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="show what would run, and where")
    add_machine_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    overrides, others = split_overrides(words, parser.valued_options())
    arguments = parser.parse_strictly(others)
    arguments.overrides = overrides
    return arguments
