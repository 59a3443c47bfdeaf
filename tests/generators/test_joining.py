"""Requests that would hold up others wait for each other, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.generators.slots import AdaptiveSlots
from agentgym.planning.clock import JumpingLoop

Starts = list[float]
TIMES = [number / 4 for number in range(12)]  # few, so that one is cancelled at the very time at which it may begin


def in_simulated_time(play: Callable[[], Coroutine[None, None, Starts]]) -> Starts:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(play())


async def begun_s(places: AdaptiveSlots, came_s: list[float], *, runs_s: float) -> Starts:
    """When each began, of requests that come at those times and run for so long."""

    async def one(at_s: float) -> float:
        await asyncio.sleep(at_s)
        async with places.held(continues=False):
            start_s = asyncio.get_running_loop().time()
            await asyncio.sleep(runs_s)
        return start_s

    return list(await asyncio.gather(*map(one, came_s)))


def starts(came_s: list[float], *, most: int = 100, join_s: float = 0.5, runs_s: float = 1000.0) -> Starts:
    async def play() -> Starts:
        places = AdaptiveSlots(most)
        places.join_s = join_s
        return await begun_s(places, came_s, runs_s=runs_s)

    return in_simulated_time(play)


def test_they_wait_in_sum_as_long_as_they_hold_up_the_others_in_sum() -> None:
    # the first joins nobody; one alone holds 1 up for 0.5 s; the next two hold 2 up, so each waits for half a second
    assert starts([0.0, 1.0, 10.0, 10.0]) == pytest.approx([0.0, 1.5, 10.5, 10.5])
    # one waits from 2 s on and another from 2.2: 0.2 + 2 * 0.15
    assert starts([0.0, 2.0, 2.2]) == pytest.approx([0.0, 2.35, 2.35])


def test_without_a_cost_or_with_nobody_to_hold_up_they_begin_at_once() -> None:
    came = [0.0, 0.1, 0.2]
    assert starts(came, join_s=0.0) == came
    assert starts([0.0, 2.0, 4.0], runs_s=1.0) == [0.0, 2.0, 4.0]
    # the last that runs has ended before they have waited long enough
    assert starts([0.0, 0.8], runs_s=1.0) == pytest.approx([0.0, 1.0])


def test_what_has_no_place_does_not_count_as_waiting() -> None:
    # two places: the third waits until 10 s for one, and from then on beside one other
    came, ends = [0.0, 0.0, 1.0], 10.0
    found = starts(came, most=2, runs_s=ends)
    assert found == pytest.approx([0.0, 0.5, 10.5])


async def test_a_request_that_is_cancelled_while_it_waits_takes_no_place() -> None:
    places = AdaptiveSlots(10)
    places.join_s = 0.01
    await places.take(continues=False)
    tasks = [asyncio.create_task(places.take(continues=False)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait_for(tasks[1], 60)
    assert tasks[0].cancelled() and places.taken_now == 2
    places.give_back()
    places.give_back()
    await asyncio.wait_for(places.take(continues=False), 60)
    assert places.taken_now == 1


def test_of_a_stream_few_joins_remain_and_little_is_waited_for_them() -> None:
    """A stream of requests, of which each holds a place for about a second: 50 of 64 at a time."""
    came = [number / 50 for number in range(500)]
    assert starts(came, most=64, join_s=0.0, runs_s=1.0) == pytest.approx(came)
    together = starts(came, most=64, join_s=0.016, runs_s=1.0)
    # 0.8 s are waited in sum for each join: by 9 requests of 50 a second, for 0.09 s in the mean
    waits = [at - before for at, before in zip(together, came, strict=True)]
    assert 40 < len(set(together)) < 80 and 0.05 < sum(waits) / len(waits) < 0.12


@given(
    st.lists(
        st.tuples(
            st.sampled_from(TIMES),  # when it comes
            st.sampled_from(TIMES),  # how long it runs
            st.none() | st.sampled_from(TIMES),  # when it is cancelled
        ),
        max_size=30,
    ),
    st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0)), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_whatever_comes_all_begin_and_nobody_waits_while_nothing_runs(requests, costs, most: int) -> None:
    async def play() -> None:
        places, began = AdaptiveSlots(most), 0

        async def one(at_s: float, runs_s: float) -> None:
            nonlocal began
            await asyncio.sleep(at_s)
            async with places.held(continues=began % 2 == 0):
                began += 1
                assert 0 < places.taken_now <= most
                places.join_s = costs[began % len(costs)]  # as estimates change
                await asyncio.sleep(runs_s)
            assert places.taken_now or not len(places._line), "the last that ran lets in who waits"

        tasks = [asyncio.create_task(one(at_s, runs_s)) for at_s, runs_s, _ in requests]
        loop = asyncio.get_running_loop()
        for task, (_, _, cancelled_s) in zip(tasks, requests, strict=True):
            if cancelled_s is not None:
                loop.call_later(cancelled_s, task.cancel)
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
        assert places.taken_now == 0 and not len(places._line)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(play())
