"""`agentgym.services` and `agentgym.run_loop`: a training loop of one's own, in a folder, from the command line."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.cli.failures import explain, show
from agentgym.cli.jobs import Jobs, JobShell, explained
from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import (
    add_machine_arguments,
    add_recipe_arguments,
    device_flags,
    finish,
    plan,
    planned_lines,
    read_recipe,
)
from agentgym.cli.recording import default_name, recorded
from agentgym.cli.script import recipe_of
from agentgym.cli.trust import add_trust_argument, trusted
from agentgym.commands.output import finish as finish_output
from agentgym.commands.output import guarded
from agentgym.commands.parser import Parser, split_overrides
from agentgym.commands.stopping import run_until_stopped, stoppable
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.loops.pieces import Pieces
from agentgym.recipe import Command, Recipe
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord
from agentgym.runs.report import PlainReporter, Reporter

if TYPE_CHECKING:
    from agentgym.run.services import Services
    from agentgym.run.sft_run import SftRun

RESUME = "resume"  # the argument of a loop that can go on with an earlier run


def services(
    recipe: Recipe | Mapping[str, object] | str,
    *,
    name: str | None = None,
    resume: str | Path | None = None,
    reporter: Reporter | None = None,
    pieces: Pieces | None = None,
    trust: bool = False,
) -> AbstractAsyncContextManager[Any]:
    """Start what a recipe names, for a loop of one's own, in a run's folder that `agentgym runs` and `view` show.

    recipe: finished, a mapping of its sections, or a file; with the section `sft` it gives the services of
    fine-tuning. name: of the folder; by default from environment, date and time. resume: the folder of an earlier run
    instead, for a loop that calls `services.load()` first; trust: also one that another user made, whose state can run
    any code. pieces: data sets, functions that score responses, and a buffer's settings. Leaving the block ends all
    processes; an error in it is recorded and raised. Raises UserError for a mistake.
    """
    made = recipe if isinstance(recipe, Recipe) else recipe_of(recipe)
    if made.sft is not None and pieces:
        raise UserError("pieces are for a loop that samples, and not for a run of fine-tuning")
    if resume is not None:
        trusted(Path(resume), {}, trust=trust, pickles=True)
    return _services(made, name, resume, reporter or PlainReporter(sys.stdout), pieces or Pieces())


@asynccontextmanager
async def _services(
    recipe: Recipe, name: str | None, resume: str | Path | None, reporter: Reporter, pieces: Pieces
) -> AsyncIterator[Services | SftRun]:
    registry = PluginRegistry.discover(recipe.plugins.disabled)
    with (
        contextlib.closing(reporter),
        _folder(recipe, name, resume) as (folder, before),
        recorded(to_mapping(recipe), folder.load_sources() if before else {}, folder, before),
    ):
        for line in [*plan(recipe, custom=True), f"folder       {folder.path}"]:
            reporter.note(line)
        reporter.phase("loading torch, torchtitan and Monarch")
        with explained():
            from agentgym.run.services import opened
        resumes = before is not None
        async with opened(recipe, folder, reporter, registry, pieces, resume=resumes) as found:
            yield found
        folder.set_status(RunStatus.DONE)
        folder.event("done")


@contextlib.contextmanager
def _folder(
    recipe: Recipe, name: str | None, resume: str | Path | None
) -> Iterator[tuple[RunFolder, StatusRecord | None]]:
    """Open for writing; and what an earlier run's status was."""
    if resume is None:
        with RunFolder.create(recipe.logging.runs_dir, name or default_name(recipe), numbered=not name) as folder:
            yield folder, None
        return
    if name is not None:
        raise UserError(f"resume goes on in the folder of {resume}, so it can't be named {name!r}: give one of the two")
    before = RunFolder.open(resume).status()
    with RunFolder.open(resume, for_writing=True) as folder:
        yield folder, before


def run_loop(
    loop: Callable[..., Coroutine[Any, Any, None]], words: Sequence[str] | None = None, *, command: Command = "train"
) -> int:
    """The main program of a file with a loop: `python -m my.loop --config FILE section.field=value`.

    loop: gets the finished recipe; its docstring is the help. One with an argument `resume` gets the folder of
    `--resume RUN`, whose own config is then the recipe, or None. words: instead of the command line's. command: whose
    recipes it takes. Returns the exit code: 0 when it is done, 1 when it failed, 2 for a mistake in what was given, 130
    for Ctrl-C.
    """
    given = list(sys.argv[1:] if words is None else words)
    shell = JobShell(out=guarded(sys.stdout), err=guarded(sys.stderr), jobs=Jobs, plugins=PluginRegistry.discover)
    try:
        with contextlib.redirect_stdout(shell.out), stoppable(shell.warn), warnings_to(shell.warn):
            arguments = _arguments(loop, given, command)
            resumes: dict[str, Path | None] = {}
            base, where = read_recipe(arguments.recipe, command)
            if RESUME in arguments:
                resumes[RESUME] = _earlier(arguments)
            if earlier := resumes.get(RESUME):
                base, where = RunFolder.open(earlier).load_config(), str(earlier / "config.yaml")
                trusted(earlier, base, trust=arguments.trust, shell=shell, pickles=True)
            flags = {"env.name": arguments.env, "agent.name": arguments.agent} | device_flags(base, arguments)
            recipe, _, _ = finish(base, flags, arguments, where, shell, command=command)
            if arguments.dry_run:
                lines = [*plan(recipe, custom=True), *planned_lines(recipe, arguments)]
                shell.say("\n".join(["Nothing was started. This would run:", *(f"  {line}" for line in lines)]))
                return 0
            run_until_stopped(loop(recipe, **resumes), shell.say)
            return 0
    except SystemExit as end:  # argparse's --help
        return int(end.code or 0)
    except BaseException as error:
        failure = explain(error, program=True)
        show(error, failure, shell.warn, debug="--debug" in given, folder=None)
        return failure.exit_code
    finally:
        finish_output(shell.out, shell.err)


def _arguments(loop: Callable[..., object], words: list[str], command: Command) -> argparse.Namespace:
    spec = getattr(sys.modules.get(loop.__module__), "__spec__", None)
    name = f"python -m {spec.name}" if spec is not None else f"python {sys.argv[0]}"
    text = (loop.__doc__ or "").strip()
    steps = "sft.steps=20" if command == "sft" else "loop.steps=20"
    examples = f"{name} --config recipe.yaml {steps} --trainer.procs 2"
    parser = Parser(prog=name, description=text, examples=examples)
    add_recipe_arguments(parser, command)
    parser.add_argument("--dry-run", action="store_true", help="show what would run, and where")
    if RESUME in inspect.signature(loop).parameters:
        parser.add_argument("--resume", metavar="RUN", help="go on with the run in this folder, by its own config")
        add_trust_argument(parser)
    add_machine_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    overrides, others = split_overrides(words, parser.valued_options())
    arguments = parser.parse_strictly(others)
    arguments.overrides = overrides
    return arguments


def _earlier(arguments: argparse.Namespace) -> Path | None:
    """The folder of the run to go on with."""
    if not arguments.resume:
        return None
    for flag, value in {"--config": arguments.recipe, "--env": arguments.env, "--reward": arguments.reward}.items():
        if value:
            raise UserError(
                f"--resume goes on with the run's own config, so {flag} can't be given with it; fields can be: "
                "loop.steps=40"
            )
    return RunFolder.open(arguments.resume).path
