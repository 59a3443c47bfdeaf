"""Watches an event loop's thread: reports the line that holds it, and interrupts plugin code that takes too long.

A timer of asyncio fires only while the loop is free. So a thread, and a timer of the kernel for code that holds the
interpreter, send SIGVTALRM to the main thread, whose handler raises in the code that it interrupts (ADR 84).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import math
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar, cast

A = TypeVar("A")
T = TypeVar("T")

EVERY_S = 1.0
REPORT_S = 10.0  # then three times as long, and so on
PACKAGE = f"{Path(__file__).parent}{os.sep}"
STDLIB = sysconfig.get_path("stdlib") + os.sep
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (\S+)$', re.M)
INSTALLED = ("site-packages", "dist-packages")  # in the standard library's folder where Python is the system's


class HeldTooLong(BaseException):
    """Raised in plugin code that did not await for longer than its limit; no `except Exception` catches it."""


class limited:
    """Around plugin code that does not await: it raises TimeoutError where that takes longer than `limit_s`.

    Where no LoopWatch is open, as in a test of one's own, nothing is limited. Costs a few microseconds.
    """

    __slots__ = ("_before_s", "_limit_s", "_watch")

    def __init__(self, limit_s: float = math.inf) -> None:
        self._limit_s = limit_s

    def __enter__(self) -> None:
        self._watch = watch = _WATCH.get()
        if watch is not None:
            self._before_s = watch.enter(self._limit_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is not None:
            self._watch.leave(self._before_s)
            if kind is HeldTooLong:
                raise self._watch.too_long(self._limit_s) from error


@contextlib.contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Around plugin code that has to wait without `await`: where that takes long, `what` is reported, not its line."""
    watch = _WATCH.get()
    if watch is None or watch.thread_id != threading.get_ident():
        yield
        return
    before, watch.waits_for = watch.waits_for, what
    try:
        yield
    finally:
        watch.waits_for = before


def call_limited(call: Callable[[A], T], argument: A, limit_s: float) -> T:
    """The call's result, as inside of `limited`, which costs twice as much."""
    watch = _WATCH.get()
    if watch is None:
        return call(argument)
    before_s = watch.enter(limit_s)
    try:
        return call(argument)
    except HeldTooLong as error:
        raise watch.too_long(limit_s) from error
    finally:
        watch.leave(before_s)


def each(begin: Callable[[], Iterable[T]], limit_s: float = math.inf) -> Iterator[T]:
    """What plugin code yields; to begin, and to yield each, it may take `limit_s`."""
    with limited(limit_s):
        items = iter(begin())
    while True:
        try:
            with limited(limit_s):
                item = next(items)
        except StopIteration:
            return
        yield item


class LoopWatch:
    """Use it as `with`, in the thread that runs the loop, before there is one.

    say: takes the lines for the user, in a thread of its own. until_s: when the plugin code that runs now has to be
    interrupted. sections, depth: how many were entered with `limited`, and how many are open. line_held: the line that
    was interrupted last. cancelled: the task whose code was, after `stop`. waits_for: see `waiting_for`.
    """

    def __init__(self, say: Callable[[str], None], *, every_s: float = EVERY_S, report_s: float = REPORT_S) -> None:
        self.until_s, self.sections, self.depth = math.inf, 0, 0
        self.waits_for = ""
        self.line_held, self.cancelled = "", cast("asyncio.Task[Any] | None", None)
        self._say, self._every_s, self._report_s = say, every_s, report_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_s, self._answered_s, self._asked = math.inf, math.inf, False
        self._ended = threading.Event()
        self.thread_id = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)

    def __enter__(self) -> Self:
        self._token = _WATCH.set(self)
        if self._is_main:
            self._handler = signal.signal(signal.SIGVTALRM, self._on_tick)
            signal.setitimer(signal.ITIMER_VIRTUAL, self._every_s, self._every_s)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._is_main:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, self._handler)
        _WATCH.reset(self._token)

    @contextlib.contextmanager
    def on_loop(self, say: Callable[[str], None]) -> Iterator[None]:
        """Watches the running loop: from now on a loop that does not run its callbacks counts as held, whatever it
        does.
        """
        before, self._say = self._say, say
        self._loop, self._asked, self._answered_s = asyncio.get_running_loop(), False, time.monotonic()
        try:
            yield
        finally:
            self._loop, self._stop_s, self._say = None, math.inf, before

    def stop(self, after_s: float = 0.0) -> None:
        """From this call on, code that holds the loop for two ticks is cancelled there, even if it never awaits."""
        self._stop_s = time.monotonic() + after_s

    def enter(self, limit_s: float) -> float:
        """Plugin code begins, which may take limit_s; `leave` takes what is returned, the limit around it.

        Cancels it where a stop waits for the loop: hundreds of calls may be ready.
        """
        if self._stop_s < math.inf and self._error() is asyncio.CancelledError:
            self.cancelled = asyncio.current_task(self._loop)
            raise asyncio.CancelledError
        before_s, until_s = self.until_s, time.monotonic() + limit_s
        if until_s < before_s:
            self.until_s = until_s
        self.sections += 1
        self.depth += 1
        return before_s

    def leave(self, before_s: float) -> None:
        """Plugin code has ended."""
        self.until_s = before_s
        self.depth -= 1

    def too_long(self, limit_s: float) -> TimeoutError:
        return TimeoutError(
            f"it held the event loop for longer than {limit_s:g} s, without an `await`: {self.line_held}"
        )

    def _run(self) -> None:
        ticks, report_s, sections = 0, self._report_s, 0
        while not self._ended.wait(self._every_s):
            ticks = ticks + 1 if self._is_held(sections) else 0  # counted: a process that was stopped has missed some
            sections = self.sections
            if not ticks:
                report_s = self._report_s
                continue
            kind = self._error()
            if ticks * self._every_s >= report_s or kind is not None:
                self._report(ticks * self._every_s, kind)
                report_s *= 3
            if kind is not None:
                self._interrupt(kind)

    def _is_held(self, sections: int) -> bool:
        """Asks the loop for an answer, unless it still owes one. sections: at the last tick."""
        loop = self._loop
        if loop is None:
            return self.depth > 0 and self.sections == sections
        if not self._asked:
            self._asked = True
            with contextlib.suppress(RuntimeError):  # it has been closed meanwhile
                loop.call_soon_threadsafe(self._answer)
            return False
        return True

    def _answer(self) -> None:
        self._asked, self._answered_s = False, time.monotonic()

    def _report(self, held_s: float, kind: type[BaseException] | None) -> None:
        if line := line_in(sys._current_frames().get(self.thread_id), installed=self.depth > 0):
            what = "it is interrupted" if kind else "nothing else goes on meanwhile"
            text = f"{line}, {held_s:.0f} s: it holds the event loop, and {what}. "
            text += "Wait with `await`, or use `asyncio.to_thread`"
            if self.waits_for:
                text = f"{self.waits_for}: {held_s:.0f} s so far, and {what}"
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
                self._say(text)

    def _interrupt(self, kind: type[BaseException]) -> None:
        if self._is_main:
            signal.pthread_kill(self.thread_id, signal.SIGVTALRM)  # also ends a wait in the kernel
            return
        if line := line_in(sys._current_frames().get(self.thread_id)):
            self.line_held = line  # it is raised at the next line: nothing ends a wait of this thread
            ident, raised = ctypes.c_ulong(self.thread_id), ctypes.py_object(kind)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, raised)

    def _on_tick(self, number: int, frame: FrameType | None) -> None:
        kind = self._error()
        if kind is None or not (line := line_in(frame)):  # our own code is never cut in two
            return
        self.line_held = line
        if kind is asyncio.CancelledError:
            self.cancelled = asyncio.current_task(self._loop)
        raise kind

    def _error(self) -> type[BaseException] | None:
        """What has to be raised in plugin code that holds the thread now."""
        now_s = time.monotonic()
        if now_s > self.until_s:
            return HeldTooLong
        stopping = self._loop is not None and now_s - max(self._stop_s, self._answered_s) > 2 * self._every_s
        return asyncio.CancelledError if stopping else None


@contextlib.contextmanager
def watching(say: Callable[[str], None]) -> Iterator[LoopWatch]:
    """The watch that is open, or a new one."""
    if (found := _WATCH.get()) is not None:
        yield found
        return
    with LoopWatch(say) as made:
        yield made


def line_in(frame: FrameType | None, *, installed: bool = True) -> str:
    """Where the innermost code is that is neither ours nor Python's, as `my_env.py:77 in reply`; "" for none.

    Of code in several packages it is the line of the one that we called. installed: also where that is a package.
    """
    return _line(((one.f_code.co_filename, line, one.f_code.co_name) for one, line in walk_stack(frame)), installed)


def line_of(error: BaseException) -> str:
    """The line of plugin code that raised it, or called what raised it, as `my_env.py:77 in reply`; "" for none.

    Of what came from another process it is the line there, if its cause has that traceback as a text.
    """
    trace = [(one.f_code.co_filename, line, one.f_code.co_name) for one, line in walk_tb(error.__traceback__)]
    program = getattr(sys.modules["__main__"], "__file__", None) or "the program"  # its functions travel by value
    found = _FRAME.findall(str(error.__cause__ or ""))
    there = [(program if file.startswith("<") else file, int(line), name) for file, line, name in found]
    return _innermost(there) or _innermost(trace)


def _innermost(trace: Sequence[tuple[str, int, str]]) -> str:
    return _line(itertools.dropwhile(lambda one: one[0].startswith(PACKAGE) or _is_stdlib(one[0]), reversed(trace)))


def _line(stack: Iterable[tuple[str, int, str]], installed: bool = True) -> str:
    """The innermost code outside this library, from (file, line, name) triples, innermost first."""
    found: list[tuple[str, int, str]] = []
    for file, line, name in stack:
        if file.startswith(PACKAGE):
            break
        if _root(file) == "pluggy" or file.startswith(("<frozen", "<string")):
            continue
        if not _is_stdlib(file):
            found.append((file, line, name))
    if not found or (_root(found[-1][0]) and not installed):
        return ""
    file, line, name = next(one for one in found if _root(one[0]) == _root(found[-1][0]))
    return f"{file.removeprefix(f'{Path.cwd()}{os.sep}')}:{line} in {name}"


def _is_stdlib(file: str) -> bool:
    return file.startswith(STDLIB) and not _root(file)


def _root(file: str) -> str:
    """The installed package that a file belongs to; "" where it is in none."""
    parts = Path(file).parts
    return next((parts[n + 1] for n, part in enumerate(parts[:-1]) if part in INSTALLED), "")


_WATCH: ContextVar[LoopWatch | None] = ContextVar("agentgym_loop_watch", default=None)
