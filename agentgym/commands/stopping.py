"""Ctrl-C, SIGTERM and SIGHUP stop a job cleanly: it is cancelled, cleans up, and the exit code names the signal.

The terminal may be gone by then, and nothing that would be said there may get in the way.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import ctypes
import logging
import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from agentgym.commands import leaving
from agentgym.commands.leaving import GIVEN_UP_S, THREADS_S
from agentgym.held_loop import watching

log = logging.getLogger(__name__)

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SA_RESETHAND = -0x80000000  # linux/signal.h, as an int of C
END_S = 5.0
SAME_S = 0.5


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


class Requests:
    """Counts the signals that ask a command to stop: after the second it ends within `end_s`, at the third at once.

    Nothing is waited for then, neither code that swallows what a signal raises nor a clean-up that hangs.
    """

    def __init__(self, end_s: float) -> None:
        self.seen: list[int] = []
        self._end_s, self._is_over = end_s, False
        self._last = (0, -math.inf)

    def repeats(self, number: int) -> bool:
        """Whether it is the last signal once more: `timeout` sends SIGTERM to the process, and at once to its group."""
        now_s = time.monotonic()
        if self._last[0] == number and now_s - self._last[1] < SAME_S:
            return True
        self._last = (number, now_s)
        return False

    def add(self, number: int) -> None:
        self.seen.append(number)
        if len(self.seen) == 2:
            self._handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, self._end_s + 1)  # the kernel's end: a call may hold the interpreter
            _thread.start_new_thread(self._end_later, ())  # threading's locks may be held by what was interrupted
        elif len(self.seen) > 2:
            os._exit(Stopped(number).exit_code)

    def close(self) -> None:
        """The command has ended by itself."""
        self._is_over = True
        if len(self.seen) > 1:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler)

    def _end_later(self) -> None:
        time.sleep(self._end_s)
        if not self._is_over:
            with contextlib.suppress(OSError):
                os.write(2, f"agentgym: still running {self._end_s:g} s after the second signal: ended\n".encode())
            os._exit(Stopped(self.seen[0]).exit_code)


@contextlib.contextmanager
def stoppable(say: Callable[[str], None] = log.warning) -> Iterator[None]:
    """Inside, the signals raise Stopped in the main thread. say: takes what a watch of that thread reports."""
    requests = Requests(END_S)

    def stop(number: int, frame: FrameType | None) -> None:
        if not requests.repeats(number):
            requests.add(number)
            raise Stopped(number)

    with contextlib.closing(requests), signals_to(stop), watching(say):
        yield


@contextlib.contextmanager
def signals_to(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Inside, the signals call `handle`, but for one that is ignored, as nohup sets it."""

    def handled(number: int, frame: FrameType | None) -> None:
        _set(number, handled)
        handle(number, frame)

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            _set(number, handled)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve_until_stopped(server: Coroutine[Any, Any, None], say: Callable[[str], None] = lambda text: None) -> None:
    """Runs a server as `run_until_stopped` does; a signal is how it is asked to end, and not a failure."""
    with contextlib.suppress(Stopped):
        run_until_stopped(server, say)


class Threads(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`. One that does not return is waited for shortly: its caller has given it up.

    stopped: whether there was a signal, after which there is less time.
    """

    def __init__(self, stopped: Callable[[], bool]) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._stopped = stopped

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)
        left_s = GIVEN_UP_S
        while wait and left_s > 0 and any(thread.is_alive() for thread in self._threads):
            time.sleep(0.02)
            left_s -= 0.02 if not self._stopped() else 0.02 * GIVEN_UP_S / THREADS_S
        leaving.given_up += [thread for thread in self._threads if wait and thread.is_alive()]


class _Action(ctypes.Structure):
    """`struct sigaction` of <signal.h>, in glibc and musl on 64 bits."""

    _fields_ = (("h", ctypes.c_void_p), ("m", ctypes.c_ulong * 16), ("flags", ctypes.c_int), ("r", ctypes.c_void_p))


def _set(number: int, handle: Callable[[int, FrameType | None], None]) -> None:
    """The handler of a signal. Python calls it only between two of its own instructions.

    So that a second Ctrl-C ends native code that holds the interpreter, the kernel forgets the handler as it delivers
    the first, and the handler comes back here. Not for SIGTERM: `timeout` sends two in a row, for one.
    """
    signal.signal(number, handle)
    if number == signal.SIGINT and sys.platform == "linux" and sys.maxsize > 2**32:
        libc, action = ctypes.CDLL(None), _Action()
        if libc.sigaction(number, None, ctypes.byref(action)) == 0:
            action.flags |= SA_RESETHAND
            libc.sigaction(number, ctypes.byref(action), None)


def leave_lost_terminal() -> None:
    """Discards all output from now on if the terminal is gone: each print would raise an OSError."""
    for descriptor in (1, 2):
        poller = select.poll()
        poller.register(descriptor, select.POLLOUT)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0)):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def run_until_stopped(
    job: Coroutine[Any, Any, T], say: Callable[[str], None], *, grace: Grace | None = None, end_s: float = END_S
) -> T:
    """Run a job on an event loop. The first signal cancels it, also where code that never awaits holds the loop.

    The second one cancels its clean-up, too, and ends the process after end_s, whatever it does. grace: what a SIGTERM
    does before the first. Raises Stopped once the job has ended because of a signal, whatever the job raised.
    """
    requests, noticed = Requests(end_s), list[int]()
    stops: list[Callable[[int, FrameType | None], None]] = []

    async def supervise() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            if watch.cancelled is not task or len(requests.seen) > 1:
                task.cancel()
            leave_lost_terminal()
            if len(requests.seen) == 1:
                say(f"stopping ({Stopped(requests.seen[0]).reason}); again to stop without cleaning up")

        def notice(number: int, grace: Grace) -> None:
            grace.noticed.set()
            leave_lost_terminal()
            say(f"SIGTERM: it saves and ends, within {grace.seconds:g} s; again to stop at once")
            loop.call_later(grace.seconds, lambda: None if requests.seen else stop(number, None))

        def stop(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGTERM and grace is not None and not requests.seen and not noticed:
                noticed.append(number)
                watch.stop(after_s=grace.seconds)
                loop.call_soon_threadsafe(notice, number, grace)
                return
            requests.add(number)
            watch.stop()
            loop.call_soon_threadsafe(cancel)

        loop.set_default_executor(Threads(lambda: bool(requests.seen)))
        stops.append(stop)
        with watch.on_loop(say):
            return await job

    def handle(number: int, frame: FrameType | None) -> None:
        if requests.repeats(number):
            return
        try:
            stops[0](number, frame)
        except (IndexError, RuntimeError):  # there is no loop yet, or none any more
            requests.add(number)
            raise Stopped(number) from None

    with contextlib.closing(requests), watching(say) as watch, signals_to(handle):
        try:
            return asyncio.run(supervise())
        except BaseException as error:
            job.close()
            if asked := requests.seen or (noticed if isinstance(error, asyncio.CancelledError) else []):
                raise Stopped(asked[0]) from error
            raise
