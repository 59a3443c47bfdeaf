"""Sinks and rewards of ours keep the promises of `agentgym.sinks` and `agentgym.rewards`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from test_rewards import ALL
from test_sinks import read_scalars

from agentgym.hooks import PluginRegistry
from agentgym.rewards import Reward
from agentgym.sinks import MetricSink
from agentgym.testing import RewardConformance, SinkConformance
from agentgym_plugins.opentelemetry import OpenTelemetrySink


class TestTensorboard(SinkConformance):
    def make(self) -> MetricSink:
        pytest.importorskip("tensorboard")
        return PluginRegistry.discover().sink("tensorboard")()

    def read(self, run_dir: Path) -> Mapping[str, Sequence[tuple[int, float]]]:
        return read_scalars(run_dir)


class TestMlflow(SinkConformance):
    def make(self) -> MetricSink:
        pytest.importorskip("mlflow", reason="pip install mlflow-skinny")
        return PluginRegistry.discover().sink("mlflow")()


@pytest.mark.hostile  # each of its servers takes half a second to end
class TestPrometheus(SinkConformance):
    def make(self) -> MetricSink:
        pytest.importorskip("prometheus_client", reason="pip install prometheus-client")
        return PluginRegistry.discover().sink("prometheus")()


class TestOpenTelemetry(SinkConformance):
    def make(self) -> MetricSink:
        memory = "opentelemetry.sdk.trace.export.in_memory_span_exporter"
        exporter = pytest.importorskip(memory, reason="pip install opentelemetry-sdk").InMemorySpanExporter()
        return OpenTelemetrySink(exporter)


class Ours(RewardConformance):
    def make(self) -> Reward:
        return ALL[type(self).__name__.removeprefix("Test_")]


globals().update({f"Test_{name}": type(f"Test_{name}", (Ours,), {}) for name in ALL})
