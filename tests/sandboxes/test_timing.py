"""Timing of calls: fair turns, checked answers."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from agentgym_sandboxes.audit.machine import descendants, footprint, machine_cpu_s, own_cpu_s
from agentgym_sandboxes.audit.timing import Plan, Way, measure

PLAN = Plan(rounds=2, calls=20, calls_at_once=24, at_once=4, warm_up=2, pause_s=0.0)


def quiet(text: str) -> None:
    pass


async def test_ways_take_turns_and_each_round_begins_with_another() -> None:
    order: list[str] = []

    def way(name: str, *, effort: int = 1) -> Way:
        async def call() -> None:
            order.append(name)

        return Way(name=name, call=call, effort=effort, at_once=False)

    timings = await measure([way("a"), way("b", effort=5)], PLAN, quiet)
    assert order == ["a"] * 2 + ["b"] + ["a"] * 10 + ["b"] * 2 + ["b"] * 2 + ["a"] * 10
    assert [(t.name, t.calls, t.per_s) for t in timings] == [("a", 20, None), ("b", 4, None)]


async def test_several_at_once_are_so_many_and_no_more() -> None:
    running = most = 0

    async def call() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    [timing] = await measure([Way(name="x", call=call)], PLAN, quiet)
    assert most == 4 and timing.calls_at_once == 24
    assert timing.p50_ms >= 10 and timing.p95_ms <= timing.max_ms
    assert timing.per_s is not None
    assert timing.per_s == pytest.approx(2 / sum(1 / rate for rate in timing.per_s_rounds))


async def test_a_wrong_answer_ends_the_measurement() -> None:
    async def call() -> None:
        raise RuntimeError("wrong")

    with pytest.raises(RuntimeError, match="wrong"):
        await measure([Way(name="x", call=call)], PLAN, quiet)


def test_cpu_time_is_seen_in_our_own_and_in_the_machines() -> None:
    own_s, machine_s = own_cpu_s(), machine_cpu_s()
    while own_cpu_s() - own_s < 0.2:
        sum(range(10_000))
    assert machine_cpu_s() - machine_s > 0.1


async def test_a_footprint_counts_descriptors_and_grandchildren() -> None:
    before = footprint()
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 60 & echo started; wait", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        during = footprint(containers=3)
        assert during.children == before.children + 2 and during.containers == 3
        assert during.descriptors > before.descriptors
        assert len(descendants(process.pid)) == 1
    finally:
        for pid in descendants(process.pid):
            os.kill(pid, signal.SIGKILL)
        await process.wait()
