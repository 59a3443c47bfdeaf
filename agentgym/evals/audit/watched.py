"""An environment for one episode, watched: how long it holds the event loop, where it raised, which tools it had."""

from __future__ import annotations

import asyncio
import contextlib
import time
import traceback
from collections.abc import Coroutine, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import coroutine
from typing import Any, TypeVar, cast

from agentgym.env import Environment
from agentgym.held_loop import HeldTooLong

Result = TypeVar("Result")

PACKAGE = str(Path(__file__).parents[2])  # frames in it are ours, not the environment's
METHODS = ("start", "reply", "grade", "finish", "toolbox", "after_calls")
TRACE_LINES = 8
SCHEDULED = Path("/proc/thread-self/schedstat")  # ns on a core, ns that it waited for one, turns


class Hangs(BaseException):
    """Calls hang, so nothing more is played: each would take its whole time limit, and there are hundreds."""


class Watched:
    """Delegates to the environment. held_s: the longest that one of its calls held the event loop without a wait.

    trace: the head of what it raised. over: shared by the episodes of a check; once a call had to be interrupted, its
    name is there, and the other episodes raise Hangs. They get a turn before each call, so that those which are played
    at the same time do interleave, as they do in training.
    """

    def __init__(self, environment: Environment[Any], over: list[str] | None = None) -> None:
        self._inner, self._over, self._is_own = environment, [] if over is None else over, False
        self.held_s = 0.0
        self.trace = ""
        self.schemas: Sequence[Mapping[str, Any]] = ()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return partial(self._call, name, value) if name in METHODS else value

    @property
    def as_environment(self) -> Environment[Any]:
        return cast("Environment[Any]", self)

    async def _call(self, name: str, method: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        if self._over and not self._is_own:
            raise Hangs
        try:
            result = await self._stepped(method(context))
        except HeldTooLong:
            self._over.append(name)
            self._is_own = True
            raise
        except Exception as error:
            self.trace = self.trace or head(error)
            raise
        if name == "toolbox" and result is not None:
            self.schemas = result.schemas()
        return result

    @coroutine
    def _stepped(self, call: Coroutine[Any, Any, Result]) -> Generator[Any, Any, Result]:
        """Await the call step by step; between two steps the event loop is free."""
        step = partial(call.send, None)
        while True:
            began_s = own_clock_s()
            try:
                awaited = step()
            except StopIteration as end:
                return cast(Result, end.value)
            finally:
                self.held_s = max(self.held_s, own_clock_s() - began_s)
            try:
                step = partial(call.send, (yield awaited))
            except BaseException as error:  # a cancellation, a time limit: the call's own to handle
                step = partial(call.throw, error)


def own_clock_s() -> float:
    """Seconds that pass for this thread: not those in which it could have run and others had all the cores."""
    waited_ns = 0
    with contextlib.suppress(OSError, IndexError, ValueError):  # a kernel without these figures
        waited_ns = int(SCHEDULED.read_text().split()[1])
    return time.perf_counter() - waited_ns / 1e9


def head(error: BaseException) -> str:
    """The error and the innermost frames that are not ours, in a few lines."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(PACKAGE)]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}" for frame in frames[-4:]]
    return "\n".join([f"{type(error).__name__}: {str(error)[:300]}", *lines][:TRACE_LINES])
