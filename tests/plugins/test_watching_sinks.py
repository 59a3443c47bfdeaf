"""Prometheus' own parser reads the endpoint, and an OTLP server the spans of a step with its episodes."""

from __future__ import annotations

import json
import math
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from otlp_server import collector, requests_of, spans_of
from sampled import sampled_turn

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sinks import StepEpisodes
from agentgym.types import Episode, ErrorRecord, Group, Outcome, SandboxTrace, Stop, Task, ToolTrace

PORT = "OTEL_EXPORTER_PROMETHEUS_PORT"


def scraped(folder: Path) -> dict[str, tuple[str, float]]:
    """By name, the label `run` and the value, from the address in the run's folder."""
    from prometheus_client.parser import text_string_to_metric_families

    [address] = json.loads((folder / "prometheus.json").read_text())[0]["targets"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {one.name: (one.labels["run"], one.value) for family in families for one in family.samples}


def test_prometheus_reads_the_newest_values_of_each_of_two_runs(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="pip install prometheus-client")
    sinks = {name: PluginRegistry.discover().sink("prometheus")() for name in ("one", "two")}
    for name, sink in sinks.items():
        (tmp_path / name).mkdir()
        sink.open(str(tmp_path / name), {})
    sinks["one"].log(1, {"train/loss": 1.5, "train/kl": math.nan, "eval/success": 0.25})
    sinks["one"].log(2, {"train/loss": 0.5, "train/kl": 0.125})
    assert scraped(tmp_path / "two") == {}
    assert scraped(tmp_path / "one") == {
        "agentgym_train_loss": ("one", 0.5),
        "agentgym_train_kl": ("one", 0.125),
        "agentgym_eval_success": ("one", 0.25),  # of the newest evaluation
        "agentgym_step": ("one", 2.0),
    }
    for sink in sinks.values():
        sink.close()
    assert not (tmp_path / "one" / "prometheus.json").exists()


def test_prometheus_refuses_an_address_that_is_taken_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prometheus_client", reason="pip install prometheus-client")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for given, why in (
            (str(taken.getsockname()[1]), "cannot serve at 127"),
            ("many", "give a port from 1 to 65535"),
        ):
            monkeypatch.setenv(PORT, given)
            with pytest.raises(UserError, match=why):
                PluginRegistry.discover().sink("prometheus")().open(str(tmp_path), {})


def played_group() -> Group:
    """One episode with two turns and a call that failed, and one that broke."""
    task = Task(task_id="sum-1", prompt=({"role": "user", "content": "1 + 1?"},))
    whole = Episode(
        episode_id="e-0",
        task=task,
        seed=0,
        turns=[sampled_turn((1, 2), (3,), version=1), sampled_turn((1, 2, 3, 4), (5, 6, 7), version=1)],
        tool_calls=[ToolTrace(turn=1, name="look", arguments={}, result="none \ud800", error="refused", seconds=0.5)],
        sandbox_calls=[
            SandboxTrace(name="write", outcome="ok", seconds=0.25, turn=0),
            SandboxTrace(name="run", outcome="timeout", seconds=0.375, turn=1, part=0),
            SandboxTrace(name="exec", outcome="SandboxLost", seconds=0.125, turn=2, part="grade", raised=True),
        ],
        timing_s={"episode_s": 3.0, "generate_s": 2.0, "grade_s": 0.25, "score_s": 0.125},
        stop=Stop.DONE,
        outcome=Outcome.SCORED,
        reward=1.0,
    )
    error = ErrorRecord(source="sandbox:docker", kind="InfraError", message="gone \ud800")
    broken = Episode(episode_id="e-1", task=task, seed=1, outcome=Outcome.INFRA_ERROR, error=error)
    return Group(group_id=7, task=task, start_version=1, episodes=[whole, broken])


def test_an_otlp_server_gets_a_step_with_its_episodes_turns_calls_and_grading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as (address, bodies):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        sink: Any = PluginRegistry.discover().sink("opentelemetry")()
        sink.open(str(tmp_path / "one"), {})
        sink.log_episodes(StepEpisodes(step=4, source="train", groups=[], skipped=[played_group()]))
        sink.log(4, {"time/step_s": 8.0, "train/kl": math.nan})
        sink.log_episodes(StepEpisodes(step=4, source="eval", groups=[played_group()] * 80))  # more than one request
        sink.close()
    requests = requests_of(bodies)
    resource = {one.key: one.value.string_value for one in requests[0].resource_spans[0].resource.attributes}
    assert (resource["service.name"], resource["agentgym.run"]) == ("agentgym", "one")
    spans = spans_of(bodies)
    names = {span.span_id: span.name for span in spans}
    shown = [
        (
            names.get(span.parent_span_id, ""),
            span.name,
            round((span.end_time_unix_nano - span.start_time_unix_nano) / 1e9, 3),
        )
        for span in spans
    ]
    assert sorted(shown[:11]) == [
        ("", "step", 8.0),
        ("episode", "execute_tool look", 0.5),
        ("episode", "grade", 0.25),
        ("episode", "sandbox write", 0.25),
        ("episode", "score", 0.125),
        ("episode", "turn", 0.5),
        ("episode", "turn", 1.5),
        ("execute_tool look", "sandbox run", 0.375),
        ("grade", "sandbox exec", 0.125),
        ("step", "episode", 0.0),
        ("step", "episode", 3.125),
    ]
    assert [span.status.message for span in spans[:11] if span.status.code == 2] == [
        "refused",
        "SandboxLost",
        "sandbox:docker: InfraError: gone ?",
    ]
    assert len({span.trace_id for span in spans[:11]}) == 1 and len({span.trace_id for span in spans}) == 2
    assert len(requests) == 3 and len(shown) == 11 + 1 + 80 * 10 and shown[-1] == ("", "evaluation", 3.125)
