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
from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.sessions import DockerSession, SessionContainer, StartSessionContainer
from agentgym_sandboxes.docker.upkeep import Starts, close_all
from agentgym_sandboxes.host.meter import CallMeter

log = logging.getLogger(__name__)

BACKOFFS_S = (0.2, 0.4, 0.8, 1.6, 3.2, 5.0)
CLOSED = "the sandbox gives no session: it was closed"

OpenNetwork: TypeAlias = Callable[
    [SessionContainer, Sequence[str], AsyncExitStack], Awaitable[Mapping[str, str]]
]
"""Lets a container reach some hosts until the stack is closed; the environment variables that say how.

Raises UserError for a list of hosts that is none.
"""


class SessionPool:
    """At most `max_sessions` at a time; more wait in turn, at most `lease_timeout_s`.

    Once the first session was asked for, `spare_sessions` containers wait for the next ones. A container is spare,
    then leased, then ending, until it is removed: only then another session may take its place.
    """

    def __init__(
        self,
        config: DockerConfig,
        start_container: StartSessionContainer,
        open_network: OpenNetwork | None = None,
        meter: CallMeter | None = None,
    ) -> None:
        self._config = config
        self._starts = Starts(start_container, "a container for sessions", BACKOFFS_S)
        self._open_network = open_network
        self._meter = meter or CallMeter()
        self._spare: collections.deque[SessionContainer] = collections.deque()
        self._leased: set[SessionContainer] = set()
        self._ending: set[SessionContainer] = set()  # of sessions
        self._to_remove: collections.deque[SessionContainer] = collections.deque()
        self._waiting: collections.deque[asyncio.Future[SessionContainer]] = collections.deque()
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    def gauges(self) -> dict[str, float]:
        """What is true now, by the names in `counts`."""
        waiting = sum(1 for future in self._waiting if not future.done())
        return {counts.SESSIONS_OPEN: len(self._leased), counts.SESSIONS_WAITING: waiting}

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
            if container.lost is not None and not self._closed:
                self._meter.counts[counts.SESSIONS_LOST] += 1
            self._end(container)

    async def close(self) -> None:
        """Remove every container; sessions under way are lost, those waiting are refused."""
        self._closed = True
        self._refuse_waiting(CLOSED)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        containers = list({*self._spare, *self._leased, *self._ending, *self._to_remove})
        self._spare.clear()
        self._to_remove.clear()
        await close_all(containers)

    async def _lease(self) -> SessionContainer:
        """A container that answers, which no session had before."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self._config.lease_timeout_s):
                container = await self._next()
        except TimeoutError:
            self._meter.queue.add(time.monotonic() - began_s)
            raise self._none_in_time() from None
        self._meter.counts[counts.SESSIONS] += 1
        self._meter.queue.add(time.monotonic() - began_s)
        return container

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxUnavailable(CLOSED)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        if self._keeper.get_loop() is not asyncio.get_running_loop():
            raise UserError("the sandbox's sessions began in another event loop, which alone can use them")
        if self._keeper.done():
            raise SandboxUnavailable("the sandbox's sessions broke; its log says why")

    async def _next(self) -> SessionContainer:
        """Wait in turn. A container that its caller does not take is given up: an engine that went down may have
        taken it along."""
        wait = self._waiting.append
        while True:
            self._check_open()
            future: asyncio.Future[SessionContainer] = asyncio.get_running_loop().create_future()
            wait(future)
            wait = self._waiting.appendleft  # its turn has come
            self._on_change()
            try:
                container = await future
                await container.ping()
                return container
            except InfraError as error:
                if not future.done() or future.exception() is not None:
                    raise  # refused
                log.info("a container for sessions is thrown away: %s", error)
                self._end(future.result())
            except BaseException:
                if future.done() and not future.cancelled() and future.exception() is None:
                    self._end(future.result())
                raise

    def _none_in_time(self) -> SandboxUnavailable:
        timeout_s = self._config.lease_timeout_s
        if len(self._leased) + len(self._ending) >= self._config.max_sessions:
            return SandboxUnavailable(
                f"no session came free within {timeout_s:g} s: {self._config.max_sessions} are under way. Set "
                "sandbox.options.max_sessions higher, or run fewer episodes at a time."
            )
        return self._starts.trouble(
            f"no session's container started within {timeout_s:g} s:", "each takes longer than that"
        )

    def _end(self, container: SessionContainer) -> None:
        """Of a session, or of a try to begin one."""
        self._leased.discard(container)
        self._ending.add(container)
        self._to_remove.append(container)
        self._on_change()

    def _refuse_waiting(self, why: str) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(SandboxUnavailable(why))

    def _on_change(self) -> None:
        """Throw away spares that are of no use; give the others to those who wait; have the keeper do the rest."""
        for container in [c for c in self._spare if not c.usable]:
            self._spare.remove(container)
            self._to_remove.append(container)
        while self._waiting and (self._waiting[0].done() or (self._spare and self._room > 0)):
            future = self._waiting.popleft()
            if not future.done():
                container = self._spare.popleft()
                self._leased.add(container)
                future.set_result(container)
        while not self._waiting and len(self._spare) > self._config.spare_sessions:
            self._to_remove.append(self._spare.pop())  # who waited for it has gone
        if self._to_remove or self._num_wanted > 0:
            self._changed.set()

    @property
    def _room(self) -> int:
        """For so many more sessions."""
        return self._config.max_sessions - len(self._leased) - len(self._ending)

    @property
    def _num_wanted(self) -> int:
        """How many more containers to start, or less than 0."""
        num_waiting = sum(1 for future in self._waiting if not future.done())
        wanted = min(num_waiting, self._room) + self._config.spare_sessions
        return wanted - len(self._spare) - self._starts.num_under_way

    async def _keep(self) -> None:
        """Start what is wanted and remove what is not, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ping_again())
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    while self._to_remove:
                        tasks.create_task(self._remove(self._to_remove.popleft()))
                    for _ in range(self._num_wanted):
                        self._starts.num_under_way += 1
                        tasks.create_task(self._add())
        except Exception as error:
            log.exception("the sandbox's sessions broke")
            self._refuse_waiting(f"the sandbox's sessions broke: {error}")
            raise

    async def _add(self) -> None:
        """Start one container, as long as one is wanted."""
        container = await self._starts.one(self._on_change, lambda: self._num_wanted < 0)
        if container is not None:
            self._spare.append(container)
            self._on_change()

    async def _remove(self, container: SessionContainer) -> None:
        try:
            await container.close()
        except InfraError as error:
            log.warning("container %s was not removed: %s", container.name, error)
        except asyncio.CancelledError:
            self._to_remove.append(container)  # `close` waits for its end
            raise
        self._ending.discard(container)
        self._on_change()

    async def _ping_again(self) -> None:
        """The agents end when they hear nothing for long; a session may think for longer."""
        while True:
            await asyncio.sleep(self._config.ping_every_s)
            pings = [container.ping() for container in (*self._spare, *self._leased)]
            for result in await asyncio.gather(*pings, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, InfraError):
                    raise result
            self._on_change()  # a spare may have become too old
