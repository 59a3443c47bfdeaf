"""Limits of many waits at once, with one timer for all of them."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadlines:
    """Ends what takes too long, as `asyncio.timeout` does, with a quarter of its memory for each wait.

    The loop keeps a timer of its own long after the wait has ended, two for each episode that plays. Here the earliest
    deadline alone has a timer, which is set again when it is over.
    """

    __slots__ = ("_limits", "_timer")

    def __init__(self) -> None:
        self._limits: set[Limit] = set()
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float) -> Limit:
        """`with`: what the task awaits inside of it raises TimeoutError when it takes longer."""
        return Limit(self, seconds)

    def _begin(self, limit: Limit) -> None:
        self._limits.add(limit)
        if self._timer is None or limit.until_s < self._timer.when():
            self._set_timer(limit.until_s)

    def _end(self, limit: Limit) -> None:
        self._limits.discard(limit)
        if not self._limits and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, until_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(until_s, self._over)

    def _over(self) -> None:
        assert self._timer is not None
        now_s, self._timer = self._timer.when(), None  # not the clock's: a timer may come a tick early
        for limit in [limit for limit in self._limits if limit.until_s <= now_s]:
            self._limits.discard(limit)
            limit.expire()
        if self._limits:
            self._set_timer(min(limit.until_s for limit in self._limits))


class Limit:
    """The time limit of one wait of one task."""

    __slots__ = ("_deadlines", "_expired", "_num_cancels", "_task", "until_s")

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._deadlines, self._task, self._num_cancels, self._expired = deadlines, task, task.cancelling(), False
        self.until_s = loop.time() + seconds

    def expire(self) -> None:
        self._expired = True
        self._task.cancel()

    def __enter__(self) -> None:
        self._deadlines._begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines._end(self)
        if self._expired and self._task.uncancel() <= self._num_cancels and kind is asyncio.CancelledError:
            raise TimeoutError from error
