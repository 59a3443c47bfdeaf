"""A real run's calls of its sandbox arrive as spans at an OTLP server, wherever the episodes are played."""

from __future__ import annotations

import pytest
from otlp_server import collector, spans_of

from agentgym.run.train import train

pytest.importorskip("pydantic_monty")


@pytest.mark.parametrize("workers", [0, 1])
async def test_an_otlp_server_gets_the_sandbox_calls_of_each_episode(
    lab, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = lab.recipe(
        "env.name=code_exec",
        "loop.steps=1",
        "eval.at_end=false",
        "logging.sinks=[opentelemetry]",
        f"rollout.workers={workers}",
    )
    with collector() as (address, bodies), lab.new_run(recipe) as folder:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        await train(recipe, folder, lab.reporter())
    spans = {span.span_id: span for span in spans_of(bodies)}
    calls = [span for span in spans.values() if span.name.startswith("sandbox ")]
    assert {span.name for span in calls} == {"sandbox grade"}
    assert {spans[span.parent_span_id].name for span in calls} == {"episode"}
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in calls)
    outcomes = {one.value.string_value for span in calls for one in span.attributes if one.key.endswith(".outcome")}
    assert outcomes and outcomes <= {"passed", "failed", "error", "timeout", "unsupported"}
