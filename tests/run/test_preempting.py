"""A run that is told to leave saves between two steps: not inside one, and none begins after that."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.run.control import StepLock, until_noticed


class Run:
    """A loop with a learner. Where it is noticed, and what was done, is in `done`."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.notice = asyncio.Event()
        self.turns = StepLock(self)
        self.fails = False

    async def step(self, groups: list) -> dict[str, float]:
        self.done.append("begin")
        if len(self.done) == 3:
            self.notice.set()  # in the middle of the second step
            await asyncio.sleep(0)
        return {}

    async def publish(self, version: int) -> None:
        await asyncio.sleep(0)
        self.done.append("end")

    async def work(self, steps: int) -> str:
        for number in range(steps):
            await self.turns.step([])
            if self.fails:
                raise RuntimeError("broken")
            await self.turns.publish(number)
            self.turns.lock.release()
        try:
            await asyncio.sleep(0)
        finally:
            self.done.append("closed")
        return "worked"

    async def leave(self) -> str:
        await self.turns.lock.acquire()
        self.done.append("saved")
        return "left"


async def test_it_saves_between_two_steps_and_no_step_begins_after_that() -> None:
    run = Run()
    assert await until_noticed(run.work(50), run.notice, run.leave) == "left"
    assert run.done[-1] == "saved" and run.done.count("begin") == run.done.count("end") < 50


async def test_while_nothing_is_trained_it_saves_at_once() -> None:
    run = Run()
    run.notice.set()
    waiting = asyncio.Event()
    assert await until_noticed(waiting.wait(), run.notice, run.leave) == "left"
    assert run.done == ["saved"]


async def test_without_a_notice_the_work_is_done_and_its_error_is_raised() -> None:
    run = Run()
    assert await until_noticed(run.work(1), run.notice, run.leave) == "worked"
    assert run.done == ["begin", "end", "closed"]
    run.fails = True
    with pytest.raises(RuntimeError, match="broken"):
        await until_noticed(run.work(9), run.notice, run.leave)


async def test_a_step_that_fails_after_the_notice_ends_the_wait_for_its_end() -> None:
    run = Run()
    run.fails = True
    run.done = ["-"] * 2  # the first step is noticed, then it breaks with the turn in its hands
    with pytest.raises(RuntimeError, match="broken"):
        await until_noticed(run.work(9), run.notice, run.leave)
    assert "saved" not in run.done


async def test_a_second_signal_ends_both() -> None:
    run = Run()
    run.notice.set()
    await run.turns.lock.acquire()
    whole = asyncio.create_task(until_noticed(run.work(1), run.notice, run.leave))
    await asyncio.sleep(0.01)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    assert run.done == []
