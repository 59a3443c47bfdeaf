"""What `agentgym train` and `agentgym sft` do with a finished recipe: show the plan, or run it and show the result."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli.failures import PREEMPTED, explain, show
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import Finished, places, plan, source_lines
from agentgym.cli.restarts import check_ending_arguments, free_path, restarts
from agentgym.cli.results import HEADER, difference_line, eval_row, train_json
from agentgym.cli.training import default_name, run_training
from agentgym.commands.stopping import Grace, Stopped, run_until_stopped
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.runs.curve import HELD_OUT, SUCCESS, series, terminal_plot
from agentgym.runs.evaluations import with_held_out
from agentgym.runs.folder import RunFolder, StatusRecord, run_path
from agentgym.yaml import dump_yaml

if TYPE_CHECKING:
    from agentgym.run.ending import TrainResult


def start(
    finished: Finished,
    earlier: Path | None,
    arguments: argparse.Namespace,
    shell: JobShell,
    *,
    command: str,
    held_out: str = "",
) -> int:
    """Train in a new folder, or in that of an `earlier` run; with --dry-run only show what would be done.

    held_out: how many tasks there are to measure on, in words, where that is known.

    With --restarts a process of its own does that, and others after it.
    """
    check_ending_arguments(arguments)
    recipe, sources, _ = finished
    name = arguments.name or default_name(recipe)
    if arguments.dry_run:
        path = earlier or run_path(recipe.logging.runs_dir, name)
        lines = [*plan(recipe, held_out), *(seats := places(recipe, arguments))]
        if arguments.json:
            shown = {"run_dir": str(path), "resume": bool(earlier), "config": to_mapping(recipe), "sources": sources}
            shell.say_json({**shown, "placement": seats})
            return 0
        lines.append(f"folder       {path}{' (continued)' if earlier else ''}")
        shell.say("\n".join([dump_yaml(to_mapping(recipe)).rstrip(), "", *source_lines(sources), ""]))
        shell.say("\n".join(["Nothing was started. This would run:", *(f"  {line}" for line in lines)]))
        return 0
    if arguments.restarts:
        path = run_path(recipe.logging.runs_dir, name)
        path = earlier or (path if arguments.name else free_path(path))
        return shell.jobs().restart(restarts(arguments, path, command=command, warn=shell.warn))
    if earlier is None:
        with RunFolder.create(recipe.logging.runs_dir, name, numbered=arguments.name is None) as folder:
            return _train(finished, folder, arguments, shell, before=None, command=command)
    before = RunFolder.open(earlier).status()
    with RunFolder.open(earlier, for_writing=True) as folder:
        return _train(finished, folder, arguments, shell, before=before, command=command)


def _train(
    finished: Finished,
    folder: RunFolder,
    arguments: argparse.Namespace,
    shell: JobShell,
    *,
    before: StatusRecord | None,
    command: str,
) -> int:
    """before: the status of the run that is resumed."""
    recipe, sources, registry = finished
    grace = None if arguments.grace is None else Grace(seconds=arguments.grace)
    try:
        reporter = choose_reporter(shell, folder.name, as_json=arguments.json, plain=arguments.plain)
        result = run_training(
            recipe,
            sources,
            folder,
            registry,
            reporter,
            shell.jobs(),
            partial(run_until_stopped, grace=grace),
            before=before,
            from_step=arguments.from_step,
            notice=grace.noticed if grace else None,
        )
        _show_result(result, folder, shell, command, as_json=arguments.json)
        if recipe.command == "sft" and not arguments.json:
            shell.say(f"policy    {folder.checkpoint_dir(result.steps)}")
        if grace and grace.noticed.is_set() and result.stopped:
            return PREEMPTED if folder.has_state else Stopped(signal.SIGTERM).exit_code
        return 0
    except BaseException as error:
        failure = explain(error)
        show(error, failure, shell.warn, debug=arguments.debug, folder=folder.path)
        if folder.has_state and not failure.is_users:
            shell.warn(f"continue from its last checkpoint: agentgym {command} --resume {folder.path}")
        return failure.exit_code


def _show_result(result: TrainResult, folder: RunFolder, shell: JobShell, command: str, *, as_json: bool) -> None:
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
    if result.stopped:
        shell.say(f"\n{result.stopped}; continue it: agentgym {command} --resume {folder.path}")
    shell.say(f"\nrun       {folder.path}" + ("  (curve.png, metrics.jsonl)" if drawn else ""))
    shell.say(f"episodes  agentgym runs episodes {folder.path}")
