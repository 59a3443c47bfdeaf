"""What `agentgym train` and `agentgym sft` do: finish the recipe, then show the plan, or run it and show the result."""

from __future__ import annotations

import argparse
import json
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agentgym.cli.failures import PREEMPTED, explain, show
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.recipes import (
    Finished,
    add_machine_arguments,
    device_flags,
    finish,
    plan,
    planned_lines,
    read_recipe,
    source_lines,
)
from agentgym.cli.recording import default_name, run_training
from agentgym.cli.restarts import add_ending_arguments, check_ending_arguments, free_path, restarts
from agentgym.cli.results import UNKNOWN, difference_line, eval_table, measure_tables, train_json
from agentgym.cli.trust import add_trust_argument, trusted
from agentgym.commands.parser import Parser
from agentgym.commands.stopping import Grace, Stopped, run_until_stopped
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.recipe import Command, Recipe
from agentgym.rollout.agent_faults import DROPPED, dropped_line
from agentgym.runs.changes import read_changes, with_values
from agentgym.runs.curve import HELD_OUT, HELD_OUT_REWARD, REWARD, SUCCESS, series, terminal_plot
from agentgym.runs.evaluations import with_held_out
from agentgym.runs.folder import RunFolder, StatusRecord, run_path
from agentgym.yaml import dump_yaml

if TYPE_CHECKING:
    from agentgym.run.ending import TrainResult


def add_run_arguments(parser: Parser, command: Command) -> None:
    """The options that train and sft share: which run, how it ends, and where it is planned."""
    seeds = "loop.seed" if command == "train" else "sft.seed"
    parser.add_argument(
        "recipe_files", nargs="*", metavar="RECIPE", help="as --recipe FILE; of several, the later changes the earlier"
    )
    parser.add_argument("--resume", metavar="RUN", help="continue the run in this folder")
    parser.add_argument("--from-step", type=int, metavar="N", help="with --resume: from the checkpoint of this step")
    parser.add_argument("--runs-dir", metavar="DIR", help="where run folders are made (default: runs)")
    parser.add_argument("--name", help="the run's name (default: environment, date and time)")
    parser.add_argument("--seed", type=int, metavar="N", help=f"sets {seeds} and trainer.seed")
    parser.add_argument("--dry-run", action="store_true", help="check recipe and memory, show config and plan")
    add_ending_arguments(parser)
    add_machine_arguments(parser)
    add_trust_argument(parser)


def start(
    command: Command, options: Mapping[str, Sequence[str]], arguments: argparse.Namespace, shell: JobShell
) -> int:
    """Train in a new folder, or in that of an earlier run; with --dry-run only show what would be done.

    options: those that set fields of the recipe. With --restarts a process of its own trains, and others after it.
    """
    finished, earlier = _finished(command, options, arguments, shell)
    recipe = finished[0]
    if not arguments.dry_run and (arguments.gpus is not None or arguments.gpu_memory is not None):
        raise UserError("--gpus and --gpu-memory are of a machine that is only planned for: give --dry-run too")
    check_ending_arguments(arguments)
    name = arguments.name or default_name(recipe)
    if arguments.dry_run:
        _show_plan(finished, earlier or run_path(recipe.logging.runs_dir, name), arguments, shell)
        return 0
    if arguments.restarts:
        path = run_path(recipe.logging.runs_dir, name)
        path = earlier or (path if arguments.name else free_path(path))
        return shell.jobs().restart(restarts(arguments, path, command=command, warn=shell.warn))
    if earlier is None:
        with RunFolder.create(recipe.logging.runs_dir, name, numbered=arguments.name is None) as folder:
            return _train(finished, folder, arguments, shell, before=None)
    before = RunFolder.open(earlier).status()
    with RunFolder.open(earlier, for_writing=True) as folder:
        return _train(finished, folder, arguments, shell, before=before)


def _finished(
    command: Command, options: Mapping[str, Sequence[str]], arguments: argparse.Namespace, shell: JobShell
) -> tuple[Finished, Path | None]:
    """The recipe of the files and options, or that of the run to resume, whose folder is the second."""
    if arguments.recipe and arguments.recipe_files:
        raise UserError(f"two recipes, {arguments.recipe_files[0]!r} and --recipe {arguments.recipe!r}: give one")
    files = arguments.recipe or arguments.recipe_files
    options = {**options, "runs_dir": ["logging.runs_dir"]}
    given = {name: value for name in (*options, "name") if (value := getattr(arguments, name)) is not None}
    if not arguments.resume:
        if arguments.from_step is not None:
            raise UserError("--from-step says where to continue a run: give the run with --resume RUN")
        base, where = read_recipe(files, command)
        flags = {key: value for name, value in given.items() for key in options.get(name, ())}
        flags |= device_flags(base, arguments)
        return finish(base, flags, arguments, where, shell, command=command), None
    if files or given:
        option = "a recipe" if files else f"--{next(iter(given)).replace('_', '-')}"
        own, field = ("config", "--loop.steps 200") if command == "train" else ("config and data", "--sft.epochs 4")
        raise UserError(
            f"--resume continues with the run's own {own}, so {option} cannot be given with it; single fields can be: "
            f"{field}"
        )
    folder = RunFolder.open(arguments.resume)
    config, where = folder.load_config(), str(folder.path / "config.yaml")
    if command == "train" and "sft" in config:
        raise UserError(f"{arguments.resume} is a run of supervised fine-tuning: agentgym sft --resume {folder.path}")
    if command == "sft" and "sft" not in config:
        raise UserError(f"{arguments.resume} was not made by `agentgym sft`: agentgym train --resume {folder.path}")
    trusted(folder.path, config, trust=arguments.trust, shell=shell)
    changes = read_changes(folder.path)
    config = with_values(config, {one.setting: one.value for one in changes})
    recipe, sources, registry = finish(config, {}, arguments, where, shell, command=command)
    changed = {one.setting: f"changed after step {one.step}" for one in changes}
    changed |= {key: source for key, source in sources.items() if source != where}
    return (recipe, folder.load_sources() | changed, registry), folder.path


def _show_plan(finished: Finished, path: Path, arguments: argparse.Namespace, shell: JobShell) -> None:
    """path: of the run's folder. Raises UserError for what could not run."""
    from agentgym.data_sets import OutOfReach

    recipe, sources, registry = finished
    held_out, out_of_reach = None, None
    if recipe.sft is None:
        from agentgym.run.gym import refuse_long_prompts
        from agentgym.run.settle import check_sampling

        check_sampling(recipe)
        try:
            held_out = refuse_long_prompts(recipe, registry)
        except OutOfReach as error:  # the plan is worth having without the environment's data, too
            out_of_reach = error
    config, resume = to_mapping(recipe), bool(arguments.resume)
    lines = [*plan(recipe, held_out), *(placement := planned_lines(recipe, arguments))]
    lines.append(f"pace         {_pace(recipe, path if resume else None)}")
    if arguments.json:
        shown = {"run_dir": str(path), "resume": resume, "config": config, "sources": sources, "placement": placement}
        shell.say_json(shown)
    else:
        lines.append(f"folder       {path}{' (continued)' if resume else ''}")
        shell.say("\n".join([dump_yaml(config).rstrip(), "", *source_lines(sources), ""]))
        shell.say("\n".join(["Nothing was started. This would run:", *(f"  {line}" for line in lines)]))
    if out_of_reach is not None:
        raise out_of_reach


def _pace(recipe: Recipe, earlier: Path | None) -> str:
    """How long the steps will take, as far as it is known without starting anything. earlier: the run's folder."""
    from agentgym.run.forecast import steps_forecast

    folder = RunFolder.open(earlier) if earlier else None
    rows = folder.read_metrics() if folder else []
    state = folder.load_state() if folder and folder.has_state and recipe.evaluates else {}
    done, steps = (rows[-1].step if rows else 0), recipe.loop.steps if recipe.sft is None else recipe.fine_tuning.steps
    end_s = cast(float, state.get("first_eval_s", 0.0))
    known = steps_forecast([row.metrics for row in rows], steps - done, end_s)
    measured = "" if recipe.sft else "; `agentgym plan --measure` measures it without a run"
    return str(known) if known else f"measured when the run starts, before its first step{measured}"


def _train(
    finished: Finished,
    folder: RunFolder,
    arguments: argparse.Namespace,
    shell: JobShell,
    *,
    before: StatusRecord | None,
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
            given=[word.removeprefix("--").partition("=")[0] for word in arguments.overrides],
            notice=grace.noticed if grace else None,
        )
        _show_result(result, folder, shell, recipe.command, as_json=arguments.json)
        if recipe.sft is not None and not arguments.json:
            shell.say(f"policy    {folder.checkpoint_dir(result.steps)}")
        if grace and grace.noticed.is_set() and result.stopped:
            return PREEMPTED if folder.has_state else Stopped(signal.SIGTERM).exit_code
        return 0
    except BaseException as error:
        failure = explain(error)
        show(error, failure, shell.warn, debug=arguments.debug, folder=folder.path)
        if folder.has_state and not failure.is_users:
            shell.warn(f"continue from its last checkpoint: agentgym {recipe.command} --resume {folder.path}")
        return failure.exit_code


def _show_result(result: TrainResult, folder: RunFolder, shell: JobShell, command: str, *, as_json: bool) -> None:
    """The first and the last checkpoint, and the curve."""
    if as_json:
        shell.say(json.dumps(train_json(result), default=str))
        return
    rows = with_held_out(folder)
    measured = [one for one in (result.first, result.last) if one is not None]
    if measured:
        shell.say("\nthe same held-out tasks with the same seeds")
        for table in (eval_table(measured), *measure_tables(measured)):
            shell.say_table(*table)
        if all(one.success is None and one.num_episodes for one in measured):
            shell.say(UNKNOWN)
    if result.difference is not None and result.last is not None:
        shell.say(difference_line(result.difference, f"{result.last.measure}, last minus first, task by task"))
    if len(rows) > 2:
        counts = Counter(key for row in rows for key in row.metrics)
        keys = [*(key for key in (HELD_OUT, HELD_OUT_REWARD) if counts[key] > 2), SUCCESS, REWARD]
        if key := next((key for key in keys if counts[key]), None):
            shell.say("\n" + terminal_plot(series(rows, key), marks=read_changes(folder.path)))
    dropped: Counter[str] = Counter()
    for row in rows:
        dropped.update({k.removeprefix(DROPPED): int(n) for k, n in row.metrics.items() if k.startswith(DROPPED)})
    if line := dropped_line(dropped):
        shell.say(f"\n{line}")
    drawn = (folder.path / "curve.png").is_file()
    if result.stopped:
        shell.say(f"\n{result.stopped}; continue it: agentgym {command} --resume {folder.path}")
    shell.say(f"\nrun       {folder.path}" + ("  (curve.png, metrics.jsonl)" if drawn else ""))
    shell.say(f"episodes  agentgym runs episodes {folder.path}")
