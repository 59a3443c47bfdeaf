"""Tests by a clock that jumps to the next timer: hours of waiting pass in milliseconds, in the same order."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from typing import Protocol, TypeVar

from agentgym.planning.clock import JumpingLoop

T = TypeVar("T")


def run_fast(work: Coroutine[None, None, T]) -> T:
    """Like asyncio.run. Nothing may be left: no task, no exception that nobody saw."""
    complaints: list[dict[str, object]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        found = await work
        await settle()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left
        return found

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        found = runner.run(watched())
    assert not complaints, complaints
    return found


def fast(test: Callable[..., Coroutine[None, None, None]]) -> Callable[..., None]:
    """A test that runs by this clock."""

    @functools.wraps(test)
    def run(*args: object, **named: object) -> None:
        run_fast(test(*args, **named))

    return run


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)


class Storm(Protocol):
    """Random events, with an assertion for each promise."""

    async def play(self) -> None: ...


def run_storms(make: Callable[[int], Storm], seeds: Iterable[int]) -> None:
    """One after another, made within its loop; a failure names its seed."""

    async def play(seed: int) -> None:
        await make(seed).play()

    for seed in seeds:
        try:
            run_fast(play(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error
