"""What a folder keeps of a run or an evaluation besides its results: config, status, and why it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from agentgym.cli.failures import Failure, explain
from agentgym.runs.files import full_disk
from agentgym.runs.folder import RunFolder, RunStatus, StatusRecord
from agentgym.runs.own import mark_run


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
