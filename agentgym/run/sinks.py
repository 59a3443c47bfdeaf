"""Feeds the metric sinks of a run, each in a thread of its own; one that raises or hangs is named and left out."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.held_loop import line_in
from agentgym.hooks import SinkFactory
from agentgym.plugin_errors import PluginError, origin_of, plugin_error
from agentgym.recipe import LoggingConfig
from agentgym.run.settle import Settled
from agentgym.sinks import EpisodeSink, MetricSink, StepEpisodes, chosen, share_of, show_group
from agentgym.types import Group, Json

log = logging.getLogger(__name__)

MAX_BEHIND = 4
"""Calls with episodes that may wait in memory for a slow sink, before the run waits for it."""
WARN_S = 10.0


class FedSink:
    """One sink, and the thread that makes, opens, feeds and closes it, in the order of the calls.

    share: of the groups that it gets, 0.0 for none. failed: why it gets nothing more.
    """

    def __init__(self, name: str, factory: SinkFactory, config: LoggingConfig) -> None:
        self.name, self.share, self.failed = name, 0.0, cast("PluginError | None", None)
        self._made: MetricSink | None = None
        self._sink: MetricSink | None = None  # once it is open
        self._factory, self._config = factory, config
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]] = queue.SimpleQueue()
        self._with_episodes: list[Future[None]] = []
        self._began_s: float | None = None  # the call that is being made
        self._warned = set[str]()
        self._thread = threading.Thread(target=self._run, name=f"sink-{name}", daemon=True)
        self._thread.start()  # one that hangs is left behind

    async def open(self, run_dir: str, config: Mapping[str, Json], *, for_episodes: bool) -> bool:
        """Make it and open it. for_episodes: only if it gets episodes. Returns whether it is open.

        Raises what it says of the user's mistake, and PluginError for anything else.
        """

        def make() -> None:
            sink = self._made = self._factory()
            self.share = share_of(sink)
            if self.share or not for_episodes:
                sink.open(run_dir, config)
                self._sink = sink

        await self._wait(self._add(make))
        if self._sink is None:
            self._calls.put((_end, Future()))
        if self.failed is not None:
            cause = self.failed.__cause__
            raise cause if isinstance(cause, UserError) else self.failed
        return self._sink is not None

    def log(self, step: int, metrics: Mapping[str, float], shown: Sequence[Group]) -> None:
        def call() -> None:
            assert self._sink is not None, "it is open"
            for group in shown:
                show_group(self._sink, step, group)
            self._sink.log(step, metrics)

        self._add(call, f"step {step}: ")

    def log_episodes(self, played: StepEpisodes) -> None:
        def call() -> None:
            assert isinstance(self._sink, EpisodeSink), "it gets episodes"
            self._sink.log_episodes(chosen(played, self.share))

        waiting = [one for one in self._with_episodes if not one.done()]
        self._with_episodes = [*waiting, self._add(call, f"step {played.step}: ")]

    async def ready(self) -> None:
        """Waits until few calls with episodes wait for it, and says so, once."""
        waiting = [one for one in self._with_episodes if not one.done()]
        if len(waiting) > MAX_BEHIND:
            self._warn("is {} steps behind with its episodes, and the run waits for it", len(waiting))
            await self._wait(waiting[-MAX_BEHIND - 1])

    async def close(self) -> None:
        """Wait for all calls, and close it. One that hangs is left behind."""
        if self._sink is not None and not self.hangs():
            await self._wait(self._add(self._sink.close, "closing it: ", even_failed=True))
        self._calls.put((_end, Future()))

    def hangs(self) -> bool:
        """Whether a call takes longer than its limit, in which case it is left out."""
        began_s, limit_s = self._began_s, self._config.sink_timeout_s
        if began_s is None or time.monotonic() - began_s <= limit_s:
            return False
        line = line_in(sys._current_frames().get(self._thread.ident or 0))
        where = (f", at {line}" if line else "") + origin_of(self._made, " ({})")
        why = f"a call takes longer than logging.sink_timeout_s = {limit_s:g}{where}"
        self._leave_out(PluginError(f"the sink {self.name!r} hangs: {why}"))
        return True

    async def _wait(self, call: Future[None]) -> None:
        """Waits for a call, unless it or one before it hangs."""
        made, warn_s = asyncio.wrap_future(call), time.monotonic() + WARN_S
        while not made.done() and not self.hangs():
            now_s, began_s = time.monotonic(), self._began_s
            if now_s >= warn_s:
                self._warn("is slow, and the run waits for it")
            left_s = self._config.sink_timeout_s - (0.0 if began_s is None else now_s - began_s)
            await asyncio.wait({made}, timeout=max(0.0, min(left_s, WARN_S)))

    def _warn(self, what: str, *counts: int) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("the sink %r%s %s", self.name, origin_of(self._made, " ({})"), what.format(*counts))

    def _add(self, call: Callable[[], None], prefix: str = "", *, even_failed: bool = False) -> Future[None]:
        """Returns at once. prefix: the beginning of a warning about it."""
        future: Future[None] = Future()

        def made() -> None:
            if self.failed is not None and not even_failed:
                return
            try:
                call()
            except (Exception, SystemExit) as error:  # plugin code: anything may come
                self._leave_out(error, prefix)

        self._calls.put((made, future))
        return future

    def _leave_out(self, error: BaseException, prefix: str = "") -> None:
        if self.failed is not None:
            return
        failed = error if isinstance(error, PluginError) else plugin_error("sink", self._made, error, self.name)
        failed.__cause__, self.failed = failed.__cause__ if failed is error else error, failed
        if self._sink is not None and self._config.sink_errors == "leave_out":
            log.warning("%s%s. It gets nothing more in this run; logging.sink_errors: end would end it", prefix, failed)

    def _run(self) -> None:
        while True:
            call, future = self._calls.get()
            if call is _end:
                return
            future.set_running_or_notify_cancel()
            self._began_s = time.monotonic()
            call()
            self._began_s = None
            future.set_result(None)


def _end() -> None:
    """The last call."""


@dataclass(slots=True)
class Sinks:
    """All of `logging.sinks` that are open."""

    config: LoggingConfig = field(default_factory=LoggingConfig)
    fed: list[FedSink] = field(default_factory=list)

    @property
    def want_episodes(self) -> bool:
        return any(one.share and one.failed is None for one in self.fed)

    def log(
        self, step: int, metrics: Mapping[str, float], groups: Sequence[Group] = (), skipped: Sequence[Group] = ()
    ) -> None:
        """Returns at once. Raises PluginError for a sink that failed, where `logging.sink_errors` is `end`."""
        every = self.config.episodes_every
        shown, values = groups[:1] if every and step % every == 0 else (), dict(metrics)
        if groups or skipped:
            self.log_episodes(lambda: StepEpisodes(step=step, source="train", groups=groups, skipped=skipped))
        for one in self.check():
            one.log(step, values, shown)

    def log_episodes(self, made: Callable[[], StepEpisodes]) -> None:
        """Returns at once. made: called only if a sink gets episodes. Raises as `log` does."""
        if asking := [one for one in self.check() if one.share]:
            played = made()
            for one in asking:
                one.log_episodes(played)

    async def ready(self) -> None:
        """Waits for sinks that are many steps behind with their episodes. Metrics are never waited for."""
        for one in self.check():
            await one.ready()

    def check(self) -> list[FedSink]:
        """Those that still get something. Raises PluginError for one that failed, if that ends the run."""
        for one in self.fed:
            one.hangs()
            if one.failed is not None and self.config.sink_errors == "end":
                raise one.failed
        return [one for one in self.fed if one.failed is None]

    async def close(self) -> None:
        for one in reversed(self.fed):
            await one.close()


@asynccontextmanager
async def open_sinks(settled: Settled, folder: Path, *, for_episodes: bool = False) -> AsyncIterator[Sinks]:
    """The recipe's sinks. Leaving the block waits until they have all that was logged.

    folder: of the run. for_episodes: opens only those that get episodes. Raises what `FedSink.open` and `Sinks.log`
    raise.
    """
    config, registry = settled.recipe.logging, settled.registry
    found = Sinks(config)
    try:
        for name in config.sinks:
            one = FedSink(name, registry.sink(name), config)
            shown = cast("dict[str, Json]", to_mapping(settled.recipe))
            if await one.open(str(folder), shown, for_episodes=for_episodes):
                found.fed.append(one)
        yield found
    except BaseException:
        await found.close()
        raise
    await found.close()
    found.check()
