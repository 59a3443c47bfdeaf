"""Calls that seldom wait: one that ends at once costs no timer. And how long something took."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from agentgym.held_loop import call_limited

Answer = TypeVar("Answer")


class Begun(Generic[Answer]):
    """A call that has run to its end, or to the first thing that it waits for. Await it to have its answer.

    What the call raises before it waits is raised here: TimeoutError, too, where it does not wait within limit_s. Later
    each part between two waits has as long.
    """

    __slots__ = ("_answer", "_coroutine", "_limit_s", "_waits_for", "ended")

    def __init__(self, call: Awaitable[Answer], limit_s: float = math.inf) -> None:
        self._coroutine = call if isinstance(call, Coroutine) else _await(call)
        self.ended, self._limit_s = False, limit_s
        try:
            self._waits_for = call_limited(self._coroutine.send, None, limit_s)
        except StopIteration as end:
            self.ended, self._answer = True, end.value
        except BaseException:
            self._coroutine.close()  # where the command is being stopped it has not begun
            raise

    def __await__(self) -> Generator[Any, Any, Answer]:
        if self.ended:
            return self._answer  # type: ignore[no-any-return]
        while True:
            try:
                try:
                    sent = yield self._waits_for
                except BaseException as error:
                    self._waits_for = call_limited(self._coroutine.throw, error, self._limit_s)
                else:
                    self._waits_for = call_limited(self._coroutine.send, sent, self._limit_s)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


async def _await(call: Awaitable[Answer]) -> Answer:
    return await call


class Timed:
    """`with`: the seconds inside of it, by the loop's clock, are added to those of a name."""

    __slots__ = ("_began_s", "_name", "_times_s")

    def __init__(self, times_s: dict[str, float], name: str) -> None:
        self._times_s, self._name = times_s, name

    def __enter__(self) -> None:
        self._began_s = asyncio.get_running_loop().time()

    def __exit__(self, *error: object) -> None:
        took_s = asyncio.get_running_loop().time() - self._began_s
        self._times_s[self._name] = self._times_s.get(self._name, 0.0) + took_s
