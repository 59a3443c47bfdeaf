"""Work in threads while the loop goes on: what a step leaves on the disk, and the metric sinks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import cast

from agentgym.hooks import PluginRegistry
from agentgym.recipe import LoggingConfig
from agentgym.sinks import MetricSink, show_group
from agentgym.types import Group, Json


class Background:
    """Pieces of work, one after the other in a thread. One that raises ends the later ones; `done` raises the same."""

    def __init__(self) -> None:
        self._last: asyncio.Task[None] | None = None

    def add(self, work: Callable[[], None]) -> None:
        self._last = asyncio.create_task(self._run(self._last, work), name="background")

    async def done(self) -> None:
        """Wait for all that was added. Cancelling the wait does not cancel the work."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def close(self) -> None:
        """Waits as `done` does, at the end of a failed run: raises nothing."""
        if self._last is not None:
            await asyncio.gather(self._last, return_exceptions=True)

    @staticmethod
    async def _run(before: asyncio.Task[None] | None, work: Callable[[], None]) -> None:
        if before is not None:
            await before
        await asyncio.to_thread(work)


class Sinks:
    """All of `logging.sinks`. One thread opens, feeds and closes them, in the order of the calls."""

    def __init__(self, episodes_every: int = 0) -> None:
        self._episodes_every = episodes_every
        self._sinks: list[MetricSink] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sinks")
        self._begun: deque[Future[None]] = deque()

    def log(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Returns at once. Raises what an earlier call raised in the thread."""
        while self._begun and self._begun[0].done():
            self._begun.popleft().result()
        shown = groups[:1] if self._episodes_every and step % self._episodes_every == 0 else ()
        if self._sinks:
            self._begun.append(self._thread.submit(self._log, step, dict(metrics), shown))

    def _log(self, step: int, metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
        for sink in self._sinks:
            for group in groups:
                show_group(sink, step, group)
            sink.log(step, metrics)

    async def call(self, function: Callable[[], None]) -> None:
        """Calls it in the thread, after everything that was logged."""
        await asyncio.get_running_loop().run_in_executor(self._thread, function)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, logging: LoggingConfig, config: Mapping[str, object], folder: Path, registry: PluginRegistry
    ) -> AsyncIterator[Sinks]:
        """Leaving the block waits until they have all that was logged. Raises what they raised.

        config: of the run, for sinks that show it. folder: of the run.
        """
        found, stack = cls(logging.episodes_every), ExitStack()

        def open_all() -> None:
            for name in logging.sinks:
                sink = registry.sink(name)()
                sink.open(str(folder), cast("dict[str, Json]", config))
                stack.callback(sink.close)
                found._sinks.append(sink)

        try:
            await found.call(open_all)
            yield found
            for one in found._begun:
                await asyncio.wrap_future(one)
        finally:
            await found.call(stack.close)
            found._thread.shutdown(wait=False)
