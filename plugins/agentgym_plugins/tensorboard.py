"""The plugin `tensorboard`: a run's metrics as TensorBoard event files, written without torch."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.errors import UserError, pip_install_only
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.types import Json


class TensorBoardSink:
    """Writes to the folder `tensorboard` of the run; `tensorboard --logdir RUN` shows it."""

    def __init__(self) -> None:
        self._writer: Any = None  # the package has no types
        self._events: Any = None
        self._values: Any = None
        self._begun = False

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when the package is missing."""
        try:
            files = importlib.import_module("tensorboard.summary.writer.event_file_writer")
            self._events = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._values = importlib.import_module("tensorboard.compat.proto.summary_pb2")
        except ImportError as error:
            raise UserError(
                f"the sink 'tensorboard' needs the package `tensorboard`: {pip_install_only('train', 'tensorboard')}, "
                "or leave it out of `logging.sinks`"
            ) from error
        folder = Path(run_dir) / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = files.EventFileWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._writer is not None, "open() comes first"
        now = time.time()
        if not self._begun:  # TensorBoard drops what an earlier process wrote of this step and of later ones
            self._begun = True
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.add_event(self._events.Event(wall_time=now, step=step, session_log=start))
        for name, value in metrics.items():
            # `tensorboard.summary` would write a tensor, which readers of scalars do not list.
            scalar = self._values.Summary.Value(tag=name, simple_value=value)
            summary = self._values.Summary(value=[scalar])
            self._writer.add_event(self._events.Event(wall_time=now, step=step, summary=summary))
        self._writer.flush()  # a run that is killed keeps its curves

    def close(self) -> None:
        """Safe to call twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"tensorboard": TensorBoardSink}
