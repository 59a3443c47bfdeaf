"""What is counted of a sandbox's calls."""

from __future__ import annotations

import random

import pytest

from agentgym.sandbox import GradeRequest, Limits, RunStatus
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.host.meter import WINDOW, CallMeter, Spread
from agentgym_sandboxes.monty.backend import MontyBackend


def test_percentiles_are_values_that_so_many_are_not_above() -> None:
    draw = random.Random(0)
    for count in (1, 2, 3, 19, 20, 21, 100, 999):
        values = [draw.random() for _ in range(count)]
        spread = Spread()
        for value in values:
            spread.add(value)
        for percent in (50, 95):
            found = spread.metrics("x")[f"x_p{percent}_s"]
            slow = next(v for v in sorted(values) if 100 * sum(w <= v for w in values) >= percent * count)
            assert found == slow


def test_percentiles_are_those_of_the_latest_values_and_there_is_none_of_nothing() -> None:
    spread = Spread()
    assert spread.metrics("x") == {}
    for value in [9.0] * 100 + [1.0] * WINDOW:
        spread.add(value)
    assert spread.metrics("x") == {"x_p50_s": 1.0, "x_p95_s": 1.0}


def test_calls_are_counted_by_status_and_every_status_is_there() -> None:
    meter = CallMeter()
    meter.answered(RunStatus.OK, queue_s=0.1, wall_s=0.2)
    meter.answered(RunStatus.OOM, queue_s=0.3, wall_s=0.4)
    meter.counts["oom_kills_total"] += 1
    found = meter.metrics({"slots_in_use": 3})
    assert found["sandbox/calls_total"] == 2 and found["sandbox/calls_oom_total"] == 1
    assert {f"sandbox/calls_{status}_total" for status in RunStatus} <= found.keys()
    assert (found["sandbox/wall_p95_s"], found["sandbox/queue_p50_s"]) == (0.4, 0.1)
    assert (found["sandbox/slots_in_use"], found["sandbox/oom_kills_total"]) == (3, 1)
    assert not [name for name in found if "start" in name or "engine" in name]


async def test_a_backend_tells_what_its_calls_came_to_and_how_long_they_took() -> None:
    async with MontyBackend() as backend:
        await backend.run("print(1)")
        await backend.run("while True: pass", limits=Limits(wall_s=0.2))
        await backend.grade(GradeRequest(code="def f(:", entry="f", cases=()))
        found = backend.metrics()
    assert found["sandbox/calls_total"] == 3 and found["sandbox/calls_timeout_total"] == 1
    assert 0.1 < found["sandbox/wall_p95_s"] < 60 and found["sandbox/start_p50_s"] > 0
    assert found["sandbox/calls_waiting"] == 0


@pytest.mark.asyncio(loop_scope="session")
async def test_calls_of_a_session_are_counted_and_a_session_waits_once(docker: DockerBackend) -> None:
    before = docker.metrics()
    async with docker.session() as session:
        await session.run("print(1)")
        await session.exec("exit 3")
        during = docker.metrics()
    assert during["sandbox/sessions_open"] == before["sandbox/sessions_open"] + 1

    def grown(name: str) -> float:
        return during[f"sandbox/{name}_total"] - before[f"sandbox/{name}_total"]

    assert [grown(n) for n in ("calls", "calls_ok", "calls_error", "sessions")] == [2, 1, 1, 1]
    assert during["sandbox/sessions_waiting"] == 0 and during["sandbox/queue_p95_s"] > 0
