"""A clock for tests that jumps to the next timer: hours of waiting pass in milliseconds, in the same order."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec, TypeVar

from agentgym.planning.clock import JumpingLoop

T = TypeVar("T")
Given = ParamSpec("Given")


def run_fast(work: Coroutine[object, object, T]) -> T:
    """Like asyncio.run, by a clock that jumps. Nothing in it may wait for another process or thread.

    Raises AssertionError when it leaves a task, or an exception that nobody retrieved.
    """
    complaints: list[dict[str, object]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        found = await work
        await settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
        return found

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        found = runner.run(watched())
    assert not complaints, f"exceptions that nobody retrieved: {complaints}"
    return found


def fast(test: Callable[Given, Coroutine[object, object, T]]) -> Callable[Given, T]:
    """Make an `async def` test a plain one that runs by this clock."""

    @functools.wraps(test)
    def run(*args: Given.args, **named: Given.kwargs) -> T:
        return run_fast(test(*args, **named))

    return run


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)
