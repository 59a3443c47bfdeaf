"""The plugin `mlflow`: a run's metrics and some of its episodes in MLflow, on disk or at a server."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agentgym.errors import UserError, pip_install
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.sinks import COLUMNS, episode_rows
from agentgym.types import Group, Json

EXPERIMENT: Final = "agentgym"
FOLDER_TAG: Final = "agentgym.run_dir"  # by which a resumed run finds what it wrote before
TABLES_TAG: Final = "mlflow.loggedArtifacts"  # what MLflow's page shows as tables
MAX_BATCH: Final = 1000  # metrics of one call
MAX_PARAMS: Final = 100
MAX_VALUE: Final = 500  # characters of a parameter, in the oldest servers


class MlflowSink:
    """One MLflow run, named like the run's folder, in the experiment `agentgym`.

    Without MLflow's own setting (MLFLOW_TRACKING_URI) it is in files, beside the folders of the runs: runs/mlruns.
    Episodes are tables, one artifact a step: episodes/step-000010.json.
    """

    def __init__(self) -> None:
        self._client: Any = None  # its types are unavailable where it is not installed
        self._entities: Any = None
        self._run_id = ""
        self._tables: list[dict[str, str]] = []

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when the package is missing or MLflow refuses the run."""
        try:
            mlflow = importlib.import_module("mlflow")
            self._entities = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise UserError(
                f"the sink 'mlflow' needs the package `mlflow-skinny` (or `mlflow`): {pip_install('mlflow')}, "
                "or leave it out of `logging.sinks`"
            ) from error
        folder = Path(run_dir).resolve()
        uri = None
        if not mlflow.is_tracking_uri_set():
            uri = (folder.parent / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which MLflow asks for since its version 3
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            self._begin(folder, config)
        except mlflow.MlflowException as error:
            self._client = None
            raise UserError(
                f"MLflow refused the run: {error}; look at MLFLOW_TRACKING_URI, or leave 'mlflow' out of "
                "`logging.sinks`"
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._client is not None, "open() comes first"
        now = int(1000 * time.time())
        found = [self._entities.Metric(key, value, now, step) for key, value in metrics.items()]
        for begin in range(0, len(found), MAX_BATCH):
            self._client.log_batch(self._run_id, metrics=found[begin : begin + MAX_BATCH])

    def log_group(self, step: int, group: Group) -> None:
        assert self._client is not None, "open() comes first"
        path = f"episodes/step-{step:06d}.json"  # in the form of MLflow's log_table, which would load pandas
        self._client.log_dict(self._run_id, {"columns": list(COLUMNS), "data": episode_rows(step, group)}, path)
        self._tables = [*[one for one in self._tables if one["path"] != path], {"path": path, "type": "table"}]
        self._client.set_tag(self._run_id, TABLES_TAG, json.dumps(self._tables))

    def close(self) -> None:
        """Safe to call twice."""
        if self._client is not None:
            self._client.set_terminated(self._run_id)
            self._client = None

    def _begin(self, folder: Path, config: Mapping[str, Json]) -> None:
        """Continue the MLflow run of this folder, or create one with the config as its parameters."""
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        place = experiment.experiment_id if experiment else self._client.create_experiment(EXPERIMENT)
        [*before] = self._client.search_runs([place], f"tags.`{FOLDER_TAG}` = '{folder}'", max_results=1)
        if before:
            self._run_id = before[0].info.run_id
            self._tables = json.loads(before[0].data.tags.get(TABLES_TAG, "[]"))
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            run = self._client.create_run(place, run_name=folder.name, tags={FOLDER_TAG: str(folder)})
            self._run_id = run.info.run_id
            params = [self._entities.Param(key, str(value)[:MAX_VALUE]) for key, value in _flat(config)]
            for begin in range(0, len(params), MAX_PARAMS):
                self._client.log_batch(self._run_id, params=params[begin : begin + MAX_PARAMS])
        self._client.log_dict(self._run_id, dict(config), "config.json")


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"mlflow": MlflowSink}


def _flat(config: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
