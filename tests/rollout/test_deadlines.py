"""Limits with one timer: each wait ends at its own time, and what was cancelled for another reason stays cancelled."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.rollout.deadlines import Deadlines
from agentgym.testing import fast


async def ended_at(deadlines: Deadlines, limit_s: float, takes_s: float) -> tuple[float, bool]:
    """When the wait was over, and whether its limit ended it."""
    clock_s = asyncio.get_running_loop().time
    try:
        with deadlines.within(limit_s):
            await asyncio.sleep(takes_s)
    except TimeoutError:
        return clock_s(), True
    return clock_s(), False


@fast
async def test_each_wait_ends_at_its_own_time_in_whatever_order_they_began() -> None:
    deadlines, clock_s = Deadlines(), asyncio.get_running_loop().time
    began_s = clock_s()
    waits = [(30, 99), (10, 99), (20, 5), (40, 99), (10, 99), (50, 45)]
    found = await asyncio.gather(*(ended_at(deadlines, *wait) for wait in waits))
    assert [(at_s - began_s, over) for at_s, over in found] == [
        (30, True), (10, True), (5, False), (40, True), (10, True), (45, False),
    ]  # fmt: skip
    assert await ended_at(deadlines, 7, 8) == (began_s + 45 + 7, True)  # after none was left


@fast
async def test_a_wait_that_somebody_else_cancels_is_cancelled_and_leaves_no_timer() -> None:
    deadlines = Deadlines()
    task = asyncio.create_task(ended_at(deadlines, 10, 99))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert deadlines._timer is None


@fast
async def test_cancelled_by_both_it_is_cancelled() -> None:
    """The limit is over in the same moment: who cancelled the task must not see it go on."""
    deadlines = Deadlines()
    task = asyncio.create_task(ended_at(deadlines, 10, 99))
    asyncio.get_running_loop().call_later(10, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@fast
async def test_of_two_limits_in_one_task_the_shorter_ends_the_wait() -> None:
    deadlines = Deadlines()
    with pytest.raises(TimeoutError), deadlines.within(5):
        assert not (await ended_at(deadlines, 10, 3))[1]
        await ended_at(deadlines, 10, 99)


@fast
async def test_thousands_of_waits_have_one_timer() -> None:
    deadlines, loop = Deadlines(), asyncio.get_running_loop()
    release = asyncio.Event()

    async def wait() -> None:
        with deadlines.within(60):
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(1000):
            group.create_task(wait())
        await asyncio.sleep(1)
        assert len(loop._scheduled) == 1  # type: ignore[attr-defined]
        release.set()
