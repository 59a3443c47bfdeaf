"""The metric sinks of a run, which are fed in a thread: no training loop waits for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import cast

from agentgym.config import to_mapping
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder
from agentgym.sinks import MetricSink, show_group
from agentgym.types import Group, Json


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
        """In the thread, after all that was logged."""
        await asyncio.get_running_loop().run_in_executor(self._thread, function)

    @classmethod
    @asynccontextmanager
    async def opened(cls, recipe: Recipe, folder: RunFolder, registry: PluginRegistry) -> AsyncIterator[Sinks]:
        """Leaving the block waits until they have all that was logged. Raises what they raised."""
        found, stack = cls(recipe.logging.episodes_every), ExitStack()

        def open_all() -> None:
            for name in recipe.logging.sinks:
                sink = registry.sink(name)()
                sink.open(str(folder.path), cast("dict[str, Json]", to_mapping(recipe)))
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
