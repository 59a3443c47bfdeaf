"""The plugin `wandb`: a run's metrics at Weights & Biases, or on disk when it is offline."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agentgym.errors import UserError, pip_install
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.sinks import COLUMNS, episode_rows
from agentgym.types import Group, Json

log = logging.getLogger(__name__)

PROJECT: Final = "agentgym"


class WandbSink:
    """One W&B run, named like the run's folder, which also holds its files.

    W&B's own settings decide where it goes: `wandb login`, or WANDB_MODE=offline and `wandb sync` later.
    """

    def __init__(self) -> None:
        self._run: Any = None  # its types are unavailable where it is not installed

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when the package is missing or W&B refuses the run."""
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise UserError(
                f"the sink 'wandb' needs the package `wandb`: {pip_install('wandb')}, "
                "or leave it out of `logging.sinks`"
            ) from error
        try:
            self._run = wandb.init(
                project=PROJECT,
                name=Path(run_dir).name,
                dir=run_dir,
                config=dict(config),
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True),  # the terminal is the run's own
            )
        except wandb.Error as error:
            raise UserError(
                f"W&B refused the run: {error}; log in with `wandb login`, set WANDB_MODE=offline, "
                "or leave 'wandb' out of `logging.sinks`"
            ) from error
        log.info("W&B: %s", f"offline, in {self._run.dir}" if self._run.offline else self._run.url)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._run is not None, "open() comes first"
        self._run.log(dict(metrics), step=step)

    def log_group(self, step: int, group: Group) -> None:
        assert self._run is not None, "open() comes first"
        table = importlib.import_module("wandb").Table(columns=list(COLUMNS), data=episode_rows(step, group))
        self._run.log({"episodes": table}, step=step)

    def close(self) -> None:
        """Safe to call twice."""
        if self._run is not None:
            self._run.finish()
            self._run = None


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"wandb": WandbSink}
