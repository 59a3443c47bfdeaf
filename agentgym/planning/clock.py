"""An event loop whose clock jumps to the next timer: hours of waiting pass in moments, in the same order."""

from __future__ import annotations

import asyncio
import selectors


class _Jumping(selectors.SelectSelector):
    """now_s: the loop's clock."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "no timer is set: all tasks wait for each other"
        self.now_s += max(0.0, timeout)
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer, for `asyncio.Runner(loop_factory=JumpingLoop)`. Nothing in it
    may wait for another process or thread.
    """

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
