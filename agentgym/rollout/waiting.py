"""Calls that seldom wait: one that ends at once costs no timer."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Coroutine, Generator
from types import CoroutineType
from typing import Any, Generic, TypeVar

from agentgym.held_loop import call_limited

Answer = TypeVar("Answer")


class Begun(Generic[Answer]):
    """A call that has run to its end, or to the first thing that it waits for.

    Await it to have its answer, or read `answer` where it has `ended`.
    What the call raises before it waits is raised here: TimeoutError, too, where it does not wait within limit_s. Later
    each part between two waits has as long.
    """

    __slots__ = ("_coroutine", "_limit_s", "_waits_for", "answer", "ended")

    def __init__(self, call: Awaitable[Answer], limit_s: float = math.inf) -> None:
        is_coroutine = type(call) is CoroutineType or isinstance(call, Coroutine)  # the first is quicker by far
        self._coroutine: Coroutine[Any, Any, Answer] = call if is_coroutine else _await(call)  # type: ignore[assignment]
        self.ended, self._limit_s = False, limit_s
        try:
            self._waits_for = call_limited(self._coroutine.send, None, limit_s)
        except StopIteration as end:
            self.ended, self.answer = True, end.value
        except BaseException:
            self._coroutine.close()  # where the command is being stopped it has not begun
            raise

    def __await__(self) -> Generator[Any, Any, Answer]:
        if self.ended:
            return self.answer  # type: ignore[no-any-return]
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
