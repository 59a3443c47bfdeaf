"""The plugin `prometheus`: a run's newest metrics at an endpoint that Prometheus scrapes."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agentgym.errors import UserError, pip_install
from agentgym.hooks import SinkFactory, hookimpl
from agentgym.types import Json

PORT: Final = 9464  # the one that OpenTelemetry's exporters to Prometheus share, whose variables are read, too
FILE: Final = "prometheus.json"  # in the form of Prometheus' `file_sd_configs`


class PrometheusSink:
    """Serves each metric as a gauge with the label `run`: `train/loss` is `agentgym_train_loss`.

    OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT say where, by default 127.0.0.1:9464, or a free port
    where another run has that one. The file prometheus.json in the run's folder has the address while the run goes on.
    """

    def __init__(self) -> None:
        self._library: Any = None  # its types are unavailable where it is not installed
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self._file, self._run = Path(), ""
        self._values: Mapping[str, tuple[str, float]] = {}  # our name and the value, by Prometheus' name

    def open(self, run_dir: str, config: Mapping[str, Json]) -> None:
        """Raises UserError when the package is missing or the address cannot be used."""
        try:
            self._library = importlib.import_module("prometheus_client.core")
            exposition = importlib.import_module("prometheus_client.exposition")
        except ImportError as error:
            raise UserError(
                f"the sink 'prometheus' needs the package `prometheus-client`: {pip_install('prometheus')}, "
                "or leave it out of `logging.sinks`"
            ) from error
        folder = Path(run_dir).resolve()
        self._file, self._run = folder / FILE, folder.name
        registry = self._library.CollectorRegistry()
        registry.register(self)
        host, port = _address()
        try:
            try:
                self._server, self._thread = exposition.start_http_server(port or PORT, host, registry)
            except OSError:
                if port:
                    raise
                self._server, self._thread = exposition.start_http_server(0, host, registry)
        except OSError as error:
            raise UserError(
                f"the sink 'prometheus' cannot serve at {host}:{port or PORT}: {error.strerror or error}; set "
                "OTEL_EXPORTER_PROMETHEUS_HOST and OTEL_EXPORTER_PROMETHEUS_PORT to a free address of this machine, or "
                "leave 'prometheus' out of `logging.sinks`"
            ) from error
        target = f"[{host}]:{self._server.server_port}" if ":" in host else f"{host}:{self._server.server_port}"
        self._file.write_text(json.dumps([{"targets": [target]}]) + "\n", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._server is not None, "open() comes first"
        newer = {_name(key): (key, value) for key, value in {**metrics, "step": float(step)}.items()}
        self._values = {**self._values, **newer}  # replaced, not changed: the server's threads read it

    def collect(self) -> Iterator[Any]:
        """The newest values, as `prometheus_client` asks for them at each scrape."""
        for name, (ours, value) in sorted(self._values.items()):
            gauge = self._library.GaugeMetricFamily(name, f"agentgym's metric {ours}", labels=["run"])
            gauge.add_metric([self._run], value)
            yield gauge

    def close(self) -> None:
        """Safe to call twice."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
            with contextlib.suppress(OSError):  # the folder may be gone
                self._file.unlink()
        if self._thread is not None:
            self._thread.join()
            self._thread = None


@hookimpl
def sinks() -> Mapping[str, SinkFactory]:
    return {"prometheus": PrometheusSink}


def _address() -> tuple[str, int]:
    """Host and port as given; 0 for the port where none is."""
    given = os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "")
    if given and not (given.isascii() and given.isdigit() and 0 < int(given) < 2**16):
        raise UserError(f"OTEL_EXPORTER_PROMETHEUS_PORT is {given!r}; give a port from 1 to 65535, or leave it out")
    return os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST") or "127.0.0.1", int(given or 0)


def _name(key: str) -> str:
    return "agentgym_" + re.sub(r"[^a-zA-Z0-9_]", "_", key)
