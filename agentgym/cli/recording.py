"""A run or an evaluation in its folder: what it does, how it went and why it ended are recorded there."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from agentgym.cli.failures import Failure, explain
from agentgym.cli.logs import warnings_to
from agentgym.cli.recipes import plan
from agentgym.config import to_mapping
from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe
from agentgym.runs.changes import read_changes
from agentgym.runs.curve import write_png
from agentgym.runs.evaluations import with_held_out
from agentgym.runs.files import full_disk
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord
from agentgym.runs.own import mark_run
from agentgym.runs.report import Reporter

if TYPE_CHECKING:
    from agentgym.cli.jobs import Jobs
    from agentgym.run.ending import TrainResult

R = TypeVar("R")
Drive: TypeAlias = Callable[[Coroutine[Any, Any, R], Callable[[str], None]], R]
"""Runs the job's coroutine to its end; it may say something meanwhile."""


def default_name(recipe: Recipe) -> str:
    """The default name of a run: its benchmark or environment, whether it is fine-tuned, date and time."""
    words = (recipe.eval.benchmark or recipe.env.name.rpartition(":")[2], "sft" if recipe.command == "sft" else "")
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
    given: Sequence[str] = (),
    notice: asyncio.Event | None = None,
) -> TrainResult:
    """Train; whatever ends it is raised and recorded.

    sources: where the recipe's fields come from. before: the status of the run that is resumed. from_step:
    its checkpoint to continue from; the newest otherwise. given: settings that this start sets itself. notice: once it
    is set, the run saves and ends.
    """

    def warn(text: str) -> None:
        reporter.note(text)
        with contextlib.suppress(InfraError):  # a full disk may be what it is about
            folder.event(text)

    with recorded(to_mapping(recipe), sources, folder, before), contextlib.closing(reporter), warnings_to(warn):
        for line in [*plan(recipe), f"folder       {folder.path}"]:
            reporter.note(line)
        resume = before is not None
        job = jobs.train(
            recipe, folder, reporter, resume=resume, from_step=from_step, given=given, registry=registry, notice=notice
        )
        result = _finish(drive, job, reporter, before)
        folder.set_status(
            RunStatus.INTERRUPTED if result.stopped else RunStatus.DONE, result.stopped or result.nothing_left
        )
        folder.event(result.stopped or "done")
        if rows := with_held_out(folder):
            try:
                write_png(rows, folder.path / "curve.png", folder.name, read_changes(folder.path))
            except (UserError, OSError) as error:
                reporter.note(f"no picture: {error}")
        return result


def _finish(
    drive: Drive[TrainResult], job: Coroutine[Any, Any, TrainResult], reporter: Reporter, before: StatusRecord | None
) -> TrainResult:
    """A run whose process was killed after its last word is done all the same."""
    try:
        return drive(job, reporter.note)
    except UserError as error:
        from agentgym.run.ending import AlreadyDoneError

        if not isinstance(error, AlreadyDoneError) or before is None or before.status is RunStatus.DONE:
            raise
        return error.result


@contextlib.contextmanager
def recorded(
    config: Mapping[str, object], sources: Mapping[str, str], folder: RunFolder, before: StatusRecord | None
) -> Iterator[None]:
    """Whatever ends the block is recorded and raised; the block itself sets the status of a good end.

    before: the status of what is resumed. A refused resume leaves the folder as it was, a refused start leaves none.
    """
    resume = before is not None
    saved = (folder.load_config(), folder.load_sources()) if resume else None
    try:
        folder.save_config(config, sources)
        mark_run(folder.path)
        folder.set_status(RunStatus.RUNNING)
        folder.event("resumed" if resume else "started")
        yield
    except BaseException as error:
        failure = explain(error)
        if failure.is_users and before is None and not folder.has_state:
            folder.remove()
            raise
        if failure.is_users and saved is not None:
            folder.save_config(*saved)  # what reads it must not take the refused settings for the run's
            mark_run(folder.path)
        advice = None if failure.is_interrupt else folder.moved() or full_disk(error, folder.path)
        _record(explain(advice or error), folder, before)
        if advice is not None:
            raise advice from error
        raise


def _record(failure: Failure, folder: RunFolder, before: StatusRecord | None) -> None:
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
