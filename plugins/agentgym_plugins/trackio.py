"""The plugin `trackio`: a run's metrics and some of its episodes in trackio's local database, or in a Space."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agentgym.errors import UserError, pip_install
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.sinks import COLUMNS, episode_rows
from agentgym.types import Episode, Group, Json

PROJECT: Final = "agentgym"


class TrackioSink:
    """One trackio run, named like the run's folder; `trackio show --project agentgym` shows it.

    trackio's own settings decide where it goes: TRACKIO_DIR, or TRACKIO_SPACE_ID. The best episode of a table is also a
    trace, which trackio draws as a conversation.
    """

    def __init__(self) -> None:
        self._trackio: Any = None  # its types are unavailable where it is not installed
        self._run: Any = None

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when the package is missing or trackio refuses the run."""
        try:
            with _silent():
                self._trackio = importlib.import_module("trackio")
        except ImportError as error:
            raise UserError(
                f"the sink 'trackio' needs the package `trackio`: {pip_install('trackio')}, "
                "or leave it out of `logging.sinks`"
            ) from error
        try:
            with _silent():
                self._run = self._trackio.init(
                    project=PROJECT,
                    name=Path(run_dir).resolve().name,
                    config=dict(config),
                    resume="allow",  # a resumed run goes on in its own
                    embed=False,
                    auto_log_cpu=False,
                    auto_log_gpu=False,
                )
        except (ValueError, OSError, RuntimeError) as error:
            raise UserError(
                f"trackio refused the run: {error}; look at TRACKIO_DIR and TRACKIO_SPACE_ID, "
                "or leave 'trackio' out of `logging.sinks`"
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._run is not None, "open() comes first"
        self._run.log({key: value for key, value in metrics.items() if math.isfinite(value)}, step=step)

    def log_group(self, step: int, group: Group) -> None:
        assert self._run is not None, "open() comes first"
        table = self._trackio.Table(columns=list(COLUMNS), data=episode_rows(step, group))
        best = max(group.episodes, key=lambda episode: -math.inf if episode.reward is None else episode.reward)
        trace = self._trackio.Trace(messages=[dict(one) for one in best.messages], metadata=_about(best))
        self._run.log({"episodes": table, "best_episode": trace}, step=step)

    def close(self) -> None:
        """Safe to call twice."""
        if self._run is not None:
            with _silent():
                self._run.finish()
            if self._trackio.context_vars.current_run.get() is self._run:
                self._trackio.context_vars.current_run.set(None)  # it would be finished once more at exit
            self._run = None


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"trackio": TrackioSink}


def _about(episode: Episode) -> dict[str, Json]:
    return {"episode": episode.episode_id, "task": episode.task.task_id, "reward": episode.reward}


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """The terminal is the run's own."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
