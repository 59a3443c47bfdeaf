"""Ctrl-C, SIGTERM and SIGHUP stop a job cleanly: it is cancelled, cleans up, and the exit code names the signal.

The terminal may be gone by then, and nothing that would be said there may get in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal stopped the command."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """128 plus the signal's number, as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number

    @property
    def reason(self) -> str:
        return "Ctrl-C" if self.number == signal.SIGINT else signal.Signals(self.number).name


@dataclass(slots=True, kw_only=True)
class Grace:
    """The first SIGTERM is a notice: the job has `seconds` to save and to end by itself, then it is cancelled."""

    seconds: float
    noticed: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Inside, the signals raise Stopped in the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    with signals_to(stop):
        yield


@contextlib.contextmanager
def signals_to(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, the signals call `handle`, but for one that is ignored, as nohup sets it."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave_lost_terminal() -> None:
    """From here on what is printed goes nowhere, if the terminal is gone: each print would raise an OSError."""
    for descriptor in (1, 2):
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def run_until_stopped(job: Coroutine[Any, Any, T], say: Callable[[str], None], *, grace: Grace | None = None) -> T:
    """Run a job on an event loop. The first signal cancels it; the next one cancels its clean-up, too.

    grace: what a SIGTERM does before that. Raises Stopped once the job has ended because of a signal, whatever the
    job raised.
    """
    seen: list[int] = []

    async def supervise() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            if number == signal.SIGTERM and grace is not None and not seen and not grace.noticed.is_set():
                grace.noticed.set()
                leave_lost_terminal()
                say(f"SIGTERM: it saves and ends, within {grace.seconds:g} s; again to stop at once")
                loop.call_later(grace.seconds, lambda: None if seen else stop(number))
                return
            task.cancel()
            seen.append(number)
            leave_lost_terminal()
            if len(seen) == 1:
                say(f"stopping ({Stopped(number).reason}); again to stop without cleaning up")

        watched = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.getsignal(number) for number in watched}
        for number in watched:
            loop.add_signal_handler(number, stop, number)
        try:
            return await job
        finally:
            for number in watched:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    try:
        return asyncio.run(supervise())
    except BaseException as error:
        if seen:
            raise Stopped(seen[0]) from error
        raise
