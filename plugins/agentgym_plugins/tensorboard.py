"""The plugin `tensorboard`: a run's metrics as TensorBoard event files, written without torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgym.errors import UserError
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.types import Json


class TensorBoardSink:
    """Writes to the folder `tensorboard` of the run; `tensorboard --logdir RUN` shows it."""

    def __init__(self) -> None:
        self._writer: Any = None  # the package has no types

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when the package is missing."""
        try:
            summary = importlib.import_module("tensorboard.summary")
        except ImportError as error:
            raise UserError(
                "the sink 'tensorboard' needs the package `tensorboard`: pip install agentgym[train], "
                "or leave it out of `logging.sinks`"
            ) from error
        folder = Path(run_dir) / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = summary.Writer(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._writer is not None, "open() comes first"
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a run that is killed keeps its curves

    def close(self) -> None:
        """Safe to call twice."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"tensorboard": TensorBoardSink}
