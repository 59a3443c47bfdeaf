"""Work behind the loop: in order, in a thread, and what it raises."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentgym.run.behind import Behind


async def test_pieces_follow_one_another_while_the_loop_goes_on() -> None:
    behind, done, go = Behind(), list[str](), threading.Event()

    def first() -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(10)
        done.append("first")

    behind.add(first)
    behind.add(lambda: done.append("second"))
    await asyncio.sleep(0.05)
    assert not done
    go.set()
    await behind.done()
    assert done == ["first", "second"]
    await Behind().done()  # nothing was added


async def test_a_failure_is_raised_and_ends_what_is_behind_it() -> None:
    behind, done = Behind(), list[str]()

    def full() -> None:
        raise OSError("no space left")

    behind.add(full)
    behind.add(lambda: done.append("a mark"))
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            await behind.done()
    assert not done
    await behind.close()


async def test_who_is_cancelled_while_waiting_leaves_the_work_to_its_end() -> None:
    behind, done = Behind(), list[str]()
    behind.add(lambda: (time.sleep(0.2), done.append("saved")))  # type: ignore[func-returns-value]
    waiting = asyncio.create_task(behind.done())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not done
    await behind.close()
    assert done == ["saved"]
