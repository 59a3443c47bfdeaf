"""An OTLP server in this process, and the spans that it got."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP server: its address, and the requests that it got."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", bodies
        server.shutdown()
        thread.join()


def requests_of(bodies: Sequence[bytes]) -> list[Any]:
    pytest.importorskip(
        "opentelemetry.exporter.otlp.proto.http", reason="pip install opentelemetry-exporter-otlp-proto-http"
    )
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return list(map(ExportTraceServiceRequest.FromString, bodies))


def spans_of(bodies: Sequence[bytes]) -> list[Any]:
    return [span for one in requests_of(bodies) for span in one.resource_spans[0].scope_spans[0].spans]
