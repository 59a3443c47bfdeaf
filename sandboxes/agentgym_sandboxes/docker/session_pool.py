"""Leases containers to sessions: so many at a time, the next ones warm, none used twice."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import SandboxDiskFull, SandboxUnavailable
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.sessions import DockerSession, SessionContainer, StartSessionContainer
from agentgym_sandboxes.meter import CallMeter

log = logging.getLogger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.2, 5.0

OpenNetwork: TypeAlias = Callable[
    [SessionContainer, Sequence[str], AsyncExitStack], Awaitable[Mapping[str, str]]
]
"""Lets a container reach some hosts until the stack is closed; the environment variables that say how.

Raises UserError for a list of hosts that is none.
"""


class SessionPool:
    """At most `max_sessions` at a time; more wait in turn, at most `lease_timeout_s`.

    Once the first session was asked for, `spare_sessions` containers wait for the next ones.
    """

    def __init__(
        self,
        config: DockerConfig,
        start_container: StartSessionContainer,
        open_network: OpenNetwork | None = None,
        meter: CallMeter | None = None,
    ) -> None:
        self._config = config
        self._start_container = start_container
        self._open_network = open_network
        self._room = asyncio.Semaphore(config.max_sessions)
        self._spare: collections.deque[SessionContainer] = collections.deque()
        self._leased: set[SessionContainer] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_starting = 0
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False
        self._num_waiting = 0
        self._meter = meter or CallMeter()

    def gauges(self) -> dict[str, float]:
        """What is true now, by the names in `counts`."""
        return {counts.SESSIONS_OPEN: len(self._leased), counts.SESSIONS_WAITING: self._num_waiting}

    @asynccontextmanager
    async def session(self, network: tuple[str, ...] = ()) -> AsyncIterator[DockerSession]:
        """A session in a container of its own. Raises SandboxUnavailable when none comes free in time."""
        if network and self._open_network is None:
            raise UserError(f"this sandbox gives a session no network, but {', '.join(network)} is asked for")
        container = await self._lease()
        try:
            async with AsyncExitStack() as stack:
                env: Mapping[str, str] = {}
                if network and self._open_network is not None:
                    env = await self._open_network(container, network, stack)
                session = DockerSession(container, self._config.memory_mib, self._meter)
                await session.open(self._config.session_disk_mib, env, self._config.start_timeout_s)
                yield session
        finally:
            if container.lost is not None:
                self._meter.counts[counts.SESSIONS_LOST] += 1
            self._in_background(self._end(container))

    async def close(self) -> None:
        """Remove every container; sessions under way are lost, those waiting are refused."""
        self._closed = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
        ending = [self._discard(container) for container in [*self._spare, *self._leased]]
        self._spare.clear()
        await asyncio.gather(*ending, *self._tasks, *([keeper] if keeper else []), return_exceptions=True)

    async def _lease(self) -> SessionContainer:
        began_s = time.monotonic()
        timeout_s = self._config.lease_timeout_s
        last_error: InfraError | None = None
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.create_task(self._ping_again())
        try:
            self._num_waiting += 1
            async with asyncio.timeout(timeout_s):
                await self._room.acquire()
        except TimeoutError:
            raise SandboxUnavailable(
                f"no session came free within {timeout_s:g} s: {self._config.max_sessions} are under way. Set "
                "sandbox.options.max_sessions higher, or run fewer episodes at a time."
            ) from None
        finally:
            self._num_waiting -= 1
        try:
            backoff_s = FIRST_BACKOFF_S
            while not self._closed:
                try:
                    container = await self._warm() or await self._started()
                except InfraError as error:
                    last_error = error
                    if time.monotonic() + backoff_s - began_s > timeout_s:
                        break
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                    continue
                if self._closed:  # meanwhile
                    await self._discard(container)
                    break
                self._leased.add(container)
                self._meter.counts[counts.SESSIONS] += 1
                self._meter.queue.add(time.monotonic() - began_s)
                self._refill()
                return container
            kind = SandboxDiskFull if isinstance(last_error, SandboxDiskFull) else SandboxUnavailable
            raise kind(
                f"no session's container started within {timeout_s:g} s: {last_error or 'it was closed'}"
            )
        except BaseException:
            self._room.release()
            raise

    async def _warm(self) -> SessionContainer | None:
        """A spare that answers: an engine that went down took its containers along."""
        while self._spare:
            container = self._spare.popleft()
            try:
                if container.usable:
                    await container.ping()
                    return container
            except InfraError as error:
                log.info("a spare container for sessions is thrown away: %s", error)
            self._in_background(self._discard(container))
        return None

    async def _started(self) -> SessionContainer:
        return await self._start_container(lambda: None)

    def _refill(self) -> None:
        missing = self._config.spare_sessions - len(self._spare) - self._num_starting
        for _ in range(0 if self._closed else missing):
            self._num_starting += 1
            self._in_background(self._add_spare())

    async def _add_spare(self) -> None:
        try:
            container = await self._started()
        except InfraError as error:
            log.warning("a spare container for sessions did not start: %s", error)
            return
        finally:
            self._num_starting -= 1
        if self._closed:
            await self._discard(container)
        else:
            self._spare.append(container)

    async def _end(self, container: SessionContainer) -> None:
        try:
            await self._discard(container)
        finally:
            self._leased.discard(container)
            self._room.release()

    async def _discard(self, container: SessionContainer) -> None:
        try:
            await container.close()
        except InfraError as error:  # it ends by itself: its input is closed
            log.warning("container %s was not removed: %s", container.name, error)

    async def _ping_again(self) -> None:
        """The agents end when they hear nothing for long; a session may think for longer."""
        while True:
            await asyncio.sleep(self._config.ping_every_s)
            containers = [*self._spare, *self._leased]
            await asyncio.gather(*(container.ping() for container in containers), return_exceptions=True)
            for container in [c for c in self._spare if not c.usable]:
                self._spare.remove(container)
                self._in_background(self._discard(container))
            self._refill()

    def _in_background(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
