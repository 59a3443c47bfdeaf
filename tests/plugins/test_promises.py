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


class Ours(RewardConformance):
    def make(self) -> Reward:
        return ALL[type(self).__name__.removeprefix("Test_")]


globals().update({f"Test_{name}": type(f"Test_{name}", (Ours,), {}) for name in ALL})
