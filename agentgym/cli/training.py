"""A training run in its folder: what it does, how it went, and its curve are recorded there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import plan
from agentgym.cli.recording import recorded
from agentgym.config import to_mapping
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe
from agentgym.runs.curve import HELD_OUT, write_png
from agentgym.runs.evaluations import with_held_out
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord
from agentgym.runs.report import Reporter

if TYPE_CHECKING:
    from agentgym.cli.jobs import Jobs
    from agentgym.run.ending import TrainResult

R = TypeVar("R")
Drive: TypeAlias = Callable[[Coroutine[Any, Any, R], Callable[[str], None]], R]
"""Runs the job's coroutine to its end; it may say something meanwhile."""


def default_name(recipe: Recipe) -> str:
    """Of a run: what the environment is called, whether it is fine-tuned in it, date and time."""
    words = (recipe.env.name.rpartition(":")[2], "sft" if recipe.command == "sft" else "")
    return "-".join([*filter(None, words), time.strftime("%Y%m%d-%H%M%S")])


def run_training(
    recipe: Recipe,
    sources: Mapping[str, str],
    folder: RunFolder,
    registry: PluginRegistry,
    reporter: Reporter,
    jobs: Jobs,
    drive: Drive[TrainResult],
    *,
    before: StatusRecord | None = None,
    from_step: int | None = None,
    notice: asyncio.Event | None = None,
) -> TrainResult:
    """Train; whatever ends it is raised and recorded.

    sources: where the recipe's fields come from. before: the status of the run that is resumed. from_step:
    its checkpoint to continue from; the newest otherwise. notice: once it is set, the run saves and ends.
    """

    def warn(text: str) -> None:
        reporter.note(text)
        with contextlib.suppress(InfraError):  # a full disk may be what it is about
            folder.event(text)

    with recorded(to_mapping(recipe), sources, folder, before), contextlib.closing(reporter), warnings_to(warn):
        for line in [*plan(recipe), f"folder       {folder.path}"]:
            reporter.note(line)
        resume = before is not None
        job = jobs.train(recipe, folder, reporter, resume=resume, from_step=from_step, registry=registry, notice=notice)
        result = _finish(drive, job, reporter, before)
        folder.set_status(
            RunStatus.INTERRUPTED if result.stopped else RunStatus.DONE, result.stopped or result.nothing_left
        )
        folder.event(result.stopped or "done")
        if rows := with_held_out(folder, HELD_OUT):
            try:
                write_png(rows, folder.path / "curve.png", folder.name)
            except (UserError, OSError) as error:
                reporter.note(f"no picture: {error}")
        return result


def _finish(
    drive: Drive[TrainResult], job: Coroutine[Any, Any, TrainResult], reporter: Reporter, before: StatusRecord | None
) -> TrainResult:
    """A run whose process was killed after its last word is done all the same."""
    from agentgym.run.ending import AlreadyDoneError

    try:
        return drive(job, reporter.note)
    except AlreadyDoneError as error:
        if before is None or before.status is RunStatus.DONE:
            raise
        return error.result
