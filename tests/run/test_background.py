"""Work in a thread beside the loop: its order, and what it raises."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentgym.run.background import Background


async def test_pieces_follow_one_another_while_the_loop_goes_on() -> None:
    background, done, go = Background(), list[str](), threading.Event()

    def first() -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert go.wait(10)
        done.append("first")

    background.add(first)
    background.add(lambda: done.append("second"))
    await asyncio.sleep(0.05)
    assert not done
    go.set()
    await background.done()
    assert done == ["first", "second"]
    await Background().done()  # nothing was added


async def test_a_failure_is_raised_and_ends_what_comes_after_it() -> None:
    background, done = Background(), list[str]()

    def full() -> None:
        raise OSError("no space left")

    background.add(full)
    background.add(lambda: done.append("a mark"))
    for _ in range(2):
        with pytest.raises(OSError, match="no space left"):
            await background.done()
    assert not done
    await background.close()


async def test_who_is_cancelled_while_waiting_leaves_the_work_to_its_end() -> None:
    background, done = Background(), list[str]()
    background.add(lambda: (time.sleep(0.2), done.append("saved")))  # type: ignore[func-returns-value]
    waiting = asyncio.create_task(background.done())
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not done
    await background.close()
    assert done == ["saved"]
