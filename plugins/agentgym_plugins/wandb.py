"""The plugin `wandb`: a run's metrics at Weights & Biases, or on disk when it is offline."""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agentgym.errors import UserError, pip_install
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.sinks import COLUMNS, episode_rows
from agentgym.types import Group, Json

log = logging.getLogger(__name__)

PROJECT: Final = "agentgym"
ID_FILE: Final = "wandb_run_id"
"""In the run's folder: a resumed run goes on in the same W&B run."""


class WandbSink:
    """One W&B run, named like the run's folder, which also holds its files.

    W&B's own settings decide where it goes: `wandb login`, or WANDB_MODE=offline and `wandb sync` later. Offline, what
    is written after a resume replaces what was before, so it begins with the steps that the run's folder has.
    """

    def __init__(self) -> None:
        self._run: Any = None  # its types are unavailable where it is not installed
        self._folder = Path()
        self._resumed = False

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when the package is missing or W&B refuses the run."""
        try:
            wandb = importlib.import_module("wandb")
        except ImportError as error:
            raise UserError(
                f"the sink 'wandb' needs the package `wandb`: {pip_install('wandb')}, "
                "or leave it out of `logging.sinks`"
            ) from error
        self._folder = Path(run_dir)
        known = self._folder / ID_FILE
        self._resumed = known.is_file()
        try:
            self._run = wandb.init(
                project=PROJECT,
                name=self._folder.name,
                id=known.read_text().strip() if self._resumed else None,
                resume="allow" if self._resumed else None,
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
        known.write_text(f"{self._run.id}\n")
        log.info("W&B: %s", f"offline, in {self._run.dir}" if self._run.offline else self._run.url)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._run is not None, "open() comes first"
        self._continue(step)
        self._run.log(dict(metrics), step=step)

    def log_group(self, step: int, group: Group) -> None:
        assert self._run is not None, "open() comes first"
        self._continue(step)
        table = importlib.import_module("wandb").Table(columns=list(COLUMNS), data=episode_rows(step, group))
        self._run.log({"episodes": table}, step=step)

    def _continue(self, step: int) -> None:
        """Continues a run, before the first step after a resume."""
        if not self._resumed:
            return
        self._resumed = False
        if self._run.offline:
            for earlier, metrics in _before(step, self._folder / "metrics.jsonl"):
                self._run.log(metrics, step=earlier)
        elif step < self._run.step:
            log.warning(
                "W&B has this run up to step %d and takes no step twice: until then it shows the values from before "
                "the resume from an earlier step; the run's own metrics.jsonl has the new ones",
                self._run.step - 1,
            )

    def close(self) -> None:
        """Safe to call twice."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _before(step: int, file: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The steps of a run's metrics.jsonl below `step`; of one that is there twice, the later line."""
    rows: list[tuple[int, dict[str, float]]] = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            row = json.loads(line)
            number = int(row.pop("step"))
        except (ValueError, KeyError):
            continue  # a line that a killed process did not finish
        while rows and rows[-1][0] >= number:
            rows.pop()
        row.pop("time", None)
        rows.append((number, {key: math.nan if value is None else value for key, value in row.items()}))
    yield from ((number, values) for number, values in rows if number < step)


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"wandb": WandbSink}
