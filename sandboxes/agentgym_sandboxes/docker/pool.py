"""A pool of warm containers: bounded slots, waiting in turn, and replacements in the background."""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, SandboxDirty, SandboxLost, SandboxUnavailable
from agentgym_sandboxes.docker.agent.frames import Frame
from agentgym_sandboxes.docker.config import DockerConfig

log = logging.getLogger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 10.0


class PooledContainer(Protocol):
    """What the pool needs of a container."""

    name: str
    reserved: int
    lost: str | None

    @property
    def usable(self) -> bool: ...

    async def call(self, op: str, blobs: Sequence[bytes], limits: Limits) -> Frame: ...

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


StartContainer: TypeAlias = Callable[[Callable[[], None]], Awaitable[PooledContainer]]
"""Starts a container that calls back when a slot came free or it was lost."""


class Pool:
    """`num_containers` x `slots` calls at a time; more wait in turn, at most `lease_timeout_s`."""

    def __init__(self, config: DockerConfig, start_container: StartContainer) -> None:
        self._config = config
        self._start_container = start_container
        self._live: list[PooledContainer] = []
        self._retired: list[PooledContainer] = []
        self._waiting: collections.deque[asyncio.Future[PooledContainer]] = collections.deque()
        self._changed = asyncio.Event()
        self._starts = asyncio.Semaphore(2 * (os.cpu_count() or 1))
        self._num_starting = 0
        self._keeper: asyncio.Task[None] | None = None
        self._last_error = ""
        self.counts: collections.Counter[str] = collections.Counter()
        self.wait_s = 0.0
        self.call_s = 0.0

    async def start(self) -> None:
        """Return when the first container is ready; the others follow in the background."""
        self._live.append(await self._start_container(self._on_change))
        self._changed.set()
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Remove every container; calls under way fail, those waiting are refused."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        self._refuse_waiting("the sandbox was closed")
        containers = [*self._live, *self._retired]
        self._live, self._retired = [], []
        results = await asyncio.gather(*(c.close() for c in containers), return_exceptions=True)
        for container, result in zip(containers, results, strict=True):
            if isinstance(result, BaseException):  # it ends by itself: its input is closed
                log.warning("container %s was not removed: %s", container.name, result)

    async def call(self, op: str, blobs: Sequence[bytes], limits: Limits) -> Frame:
        """Make one call; once more on another container when the first is lost or dirty."""
        began_s = time.monotonic()
        container = await self._lease()
        leased_s = time.monotonic()
        self.wait_s += leased_s - began_s
        self.counts["calls"] += 1
        try:
            try:
                return await container.call(op, blobs, limits)
            except (SandboxLost, SandboxDirty) as error:
                self._count(error)
                log.info("%s; making the call again on another container", error)
            container = await self._lease()
            self.counts["retries"] += 1
            try:
                return await container.call(op, blobs, limits)
            except (SandboxLost, SandboxDirty) as error:
                self._count(error)
                raise
        finally:
            self.call_s += time.monotonic() - leased_s

    @property
    def num_live(self) -> int:
        return sum(1 for container in self._live if container.usable)

    @property
    def num_waiting(self) -> int:
        return sum(1 for future in self._waiting if not future.done())

    def _count(self, error: SandboxLost | SandboxDirty) -> None:
        self.counts["dirty" if isinstance(error, SandboxDirty) else "lost"] += 1

    async def _lease(self) -> PooledContainer:
        """A container with a slot reserved for the caller. Raises SandboxUnavailable after the deadline."""
        if self._keeper is None:
            raise SandboxUnavailable("the sandbox is not started; use `async with` or await its start()")
        if self._keeper.done():
            raise SandboxUnavailable("the sandbox pool broke; its log says why")
        future: asyncio.Future[PooledContainer] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._serve_waiting()
        try:
            async with asyncio.timeout(self._config.lease_timeout_s):
                return await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                future.result().reserved -= 1  # it came too late for its caller
                self._on_change()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise SandboxUnavailable(self._no_slot_text()) from None

    def _no_slot_text(self) -> str:
        last = f" The last error: {self._last_error}." if self._last_error else ""
        return (
            f"no sandbox slot came free within {self._config.lease_timeout_s:g} s: {self.num_live} of "
            f"{self._config.num_containers} containers are up, each serves {self._config.slots} calls at a "
            f"time.{last} Set sandbox.options.pool_size or slots higher, or run fewer episodes at a time."
        )

    def _serve_waiting(self) -> None:
        """Give free slots to those who wait, in turn, from the container that is least busy."""
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            free = [c for c in self._live if c.usable and c.reserved < self._config.slots]
            if not free:
                return
            container = min(free, key=lambda c: c.reserved)
            container.reserved += 1
            self._waiting.popleft().set_result(container)

    def _refuse_waiting(self, why: str) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(SandboxUnavailable(why))

    def _on_change(self) -> None:
        self._serve_waiting()
        if any(not container.usable for container in self._live) or self._retired:
            self._changed.set()

    async def _keep(self) -> None:
        """Replace what is used up or lost, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ping_all())
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    for container in [c for c in self._live if not c.usable]:
                        self._live.remove(container)
                        self._retired.append(container)
                        self.counts["replaced"] += 1
                    for container in [c for c in self._retired if c.reserved == 0 or c.lost is not None]:
                        self._retired.remove(container)
                        tasks.create_task(self._discard(container))
                    for _ in range(self._config.num_containers - len(self._live) - self._num_starting):
                        self._num_starting += 1
                        tasks.create_task(self._add())
        except Exception as error:
            log.exception("the sandbox pool broke")
            self._refuse_waiting(f"the sandbox pool broke: {error}")
            raise

    async def _add(self) -> None:
        """Start one container, however often that takes."""
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                try:
                    async with self._starts:
                        container = await self._start_container(self._on_change)
                    break
                except InfraError as error:
                    self._last_error = str(error)
                    self.counts["start_failures"] += 1
                    log.warning("a container did not start, trying again in %.1f s: %s", backoff_s, error)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
        finally:
            self._num_starting -= 1
        self._last_error = ""
        self._live.append(container)
        self._on_change()

    async def _discard(self, container: PooledContainer) -> None:
        try:
            await container.close()
        except InfraError as error:
            log.warning("container %s was not removed: %s", container.name, error)

    async def _ping_all(self) -> None:
        while True:
            await asyncio.sleep(self._config.ping_every_s)
            results = await asyncio.gather(*(c.ping() for c in self._live), return_exceptions=True)
            self.counts["failed_pings"] += sum(1 for result in results if isinstance(result, InfraError))
            self._on_change()  # a container may have become too old
