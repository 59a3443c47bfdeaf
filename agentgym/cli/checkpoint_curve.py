"""`agentgym eval RUN --every-checkpoint`: a run's checkpoints on the same held-out tasks, as one curve."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.cli.evaluating import base_recipe, check_playable
from agentgym.cli.failures import explain, show
from agentgym.cli.jobs import JobShell, choose_reporter
from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import finish
from agentgym.cli.results import figure, interval
from agentgym.commands.stopping import run_until_stopped
from agentgym.commands.text import few
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.runs.curve import write_checkpoints_png
from agentgym.runs.folder import RunFolder
from agentgym.yaml import value_at

if TYPE_CHECKING:
    from agentgym.evals.checkpoints import Point
    from agentgym.run.checkpoint_curve import Curve

PICTURE = "checkpoints.png"  # in the run's folder
BAR = 40  # columns
OWN = ("recipe", "agent", "reward", "seed", "greedy", "name", "resume", "base_url", "api_key_env", "evals_dir", "check",
       "shard")  # fmt: skip
MACHINE = ("generator", "sandbox", "launcher", "hosts", "eval.tasks", "eval.samples_per_task", "eval.scores_cuts")


def measure_checkpoints(arguments: argparse.Namespace, shell: JobShell, flags: dict[str, object]) -> int:
    """flags: fields of the recipe that options of `eval` set."""
    folder, steps = _asked(arguments)
    _refuse_others(arguments)
    base, where = base_recipe(None, folder.path, trust=arguments.trust, shell=shell)
    if arguments.env and value_at(base, "env.name"):
        raise UserError(f"{_words(arguments)} plays the run's own environment, so leave out --env")
    first = {"model.path": str(folder.path / f"checkpoints/step-{steps[0]:06d}"), "model.random_weights": False}
    finished = finish(base, flags | first | {"env.name": arguments.env}, arguments, where, shell)
    recipe, _, registry = finished
    held_out = check_playable(finished, count=arguments.dry_run)
    if arguments.dry_run and arguments.json:
        plan = {"run": str(folder.path), "steps": steps, "held_out": asdict(held_out)}
        shell.say(json.dumps(plan | {"config": to_mapping(recipe)}))
        return 0
    if arguments.dry_run:
        shell.say("Nothing was started. This would be played:")
        shell.say(f"  checkpoints  {few(steps)} of {folder.path}; what is measured already is kept")
        shell.say(f"  environment  {recipe.env.name}" + (f" {recipe.env.options}" if recipe.env.options else ""))
        shell.say(f"  tasks        {held_out}, {recipe.eval.samples_per_task} times each")
        if held_out.warning:
            shell.say(f"               {held_out.warning}")
        return 0
    reporter = choose_reporter(shell, f"eval {folder.name}", as_json=arguments.json, plain=True)
    with RunFolder.open(folder.path, for_writing=True) as folder, contextlib.closing(reporter):
        try:
            with warnings_to(reporter.note):
                job = shell.jobs().evaluate_checkpoints(recipe, folder, reporter, steps=steps, registry=registry)
                curve = run_until_stopped(job, reporter.note)
        except BaseException as error:
            failure = explain(error)
            show(error, failure, shell.warn, debug=arguments.debug, folder=folder.path)
            if not failure.is_users:
                shell.warn(f"continue it: the same command again, agentgym eval {folder.path} {_words(arguments)}")
            return failure.exit_code
    return _show(curve, folder, arguments, shell)


def _asked(arguments: argparse.Namespace) -> tuple[RunFolder, list[int]]:
    """The run and the steps of its checkpoints. Raises UserError for what is no run, or has no such checkpoint."""
    given, words = arguments.model, _words(arguments)
    if given is None:
        raise UserError(f"{words} measures the checkpoints of a run; give the run's folder: agentgym eval RUN {words}")
    if not (Path(given) / "status.json").is_file():
        raise UserError(f"{words} measures the checkpoints of a run, and {given!r} is not the folder of one")
    folder = RunFolder.open(given)
    kept = folder.checkpoint_steps()
    if not kept:
        raise UserError(f"run {given!r} has no checkpoint yet")
    if arguments.every_checkpoint:
        return folder, kept
    steps = set()
    for word in arguments.checkpoints.split(","):
        step = kept[-1] if word.strip() == "last" else int(word) if re.fullmatch(r"\s*\d{1,9}\s*", word) else None
        if step not in kept:
            there = f"there are {few(kept)}, and `last`"
            raise UserError(f"--checkpoints: {given} has no checkpoint {word.strip()!r}; {there}")
        steps.add(step)
    return folder, sorted(steps)


def _words(arguments: argparse.Namespace) -> str:
    return "--every-checkpoint" if arguments.every_checkpoint else f"--checkpoints {arguments.checkpoints}"


def _refuse_others(arguments: argparse.Namespace) -> None:
    """Raises UserError for what would play otherwise than the run: its evaluations and these are one curve."""
    given = [f"--{name.replace('_', '-')}" for name in OWN if getattr(arguments, name, None)]
    keys = [word.removeprefix("--").partition("=")[0] for word in arguments.overrides]
    given += [f"--{key}" for key in keys if not any(key == own or key.startswith(f"{own}.") for own in MACHINE)]
    if arguments.every_checkpoint and arguments.checkpoints:
        given.append("--checkpoints")
    if given:
        raise UserError(
            f"{_words(arguments)} plays as the run does, whose own evaluations are points of the same curve, so leave "
            f"out {given[0]}; --tasks, --samples, --generator.* and --sandbox.* may be given. To play one "
            "checkpoint otherwise: agentgym eval RUN/checkpoints/step-000020"
        )


def _show(curve: Curve, folder: RunFolder, arguments: argparse.Namespace, shell: JobShell) -> int:
    picture, points = folder.path / PICTURE, curve.points
    what = "reward" if all(one.success is None for one in points) else "success"
    title = (
        f"{curve.setup.environment}, {curve.setup.num_tasks} held-out tasks, {curve.setup.samples_per_task} times each"
    )
    values = [(one.step, one.value, one.low, one.high) for one in points if one.value is not None]
    drawn = ""
    try:
        write_checkpoints_png(values, picture, f"{folder.name}: {title}", what)
    except UserError as error:
        drawn = str(error)
    if arguments.json:
        found = {"event": "result", "run": str(folder.path), "setup": curve.setup.to_mapping(), "measure": what}
        curve_json = {"curve": [asdict(one) for one in points], "picture": None if drawn else str(picture)}
        shell.say(json.dumps(found | curve_json))
        return 0 if values else 1
    shell.say(f"\n{title}")
    shell.say_table(("step", what, "95% interval", "tasks", "episodes", ""), _rows(points))
    shell.say(f"\npicture: {drawn or picture}")
    shell.say(f"page: agentgym view {folder.path}   episodes: agentgym runs episodes {folder.path} --evals")
    return 0 if values else 1


def _rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Each with a bar over the range of all intervals."""
    ends = [end for one in points for end in (one.value, one.low, one.high) if end is not None]
    low, high = min(ends, default=0.0), max(ends, default=1.0)

    def column(value: float) -> int:
        return round((value - low) / ((high - low) or 1) * (BAR - 1))

    rows: list[tuple[str, ...]] = []
    for one in points:
        bar = [" "] * BAR
        if one.low is not None and one.high is not None:
            a, b = column(one.low), column(one.high)
            bar[a : b + 1] = "─" * (b + 1 - a)
            bar[a], bar[b] = "├", "┤"
        if one.value is not None:
            bar[column(one.value)] = "●"
        counts = (str(one.num_tasks), str(one.num_episodes))
        rows.append((str(one.step), figure(one.value), interval(one), *counts, "".join(bar).rstrip()))
    return rows
