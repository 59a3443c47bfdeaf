"""A thread that can't begin for want of memory raises MemoryError, where `Thread.start` of Python 3.11 waits forever.

A new thread that finds no memory for its first frame ends before it has said that it began, and `start` waits for that.
"""

from __future__ import annotations

import threading

PATIENCE_S = 60


class _Started(threading.Event):
    """The start of one thread. Slices of a second: a process that was stopped by a signal has lost one, not all of
    them.
    """

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(PATIENCE_S):
            if super().wait(1.0):
                return True
        raise MemoryError(f"a new thread did not begin within {PATIENCE_S} s: it finds no memory")


def bound_thread_starts() -> None:
    """Bounds the start of every thread of this process from now on, including those of libraries. Once a process."""
    start = threading.Thread.start

    def bounded(thread: threading.Thread) -> None:
        if not thread._started.is_set():  # type: ignore[attr-defined]
            thread._started = _Started()  # type: ignore[attr-defined]
        start(thread)

    threading.Thread.start = bounded  # type: ignore[method-assign, assignment]
