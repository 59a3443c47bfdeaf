"""Leases containers to sessions: so many at a time, the next ones warm, none used twice."""

from __future__ import annotations

import asyncio
import collections
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol, TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import SandboxUnavailable
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.session_network import Hosts
from agentgym_sandboxes.docker.sessions import DockerSession
from agentgym_sandboxes.docker.upkeep import KeptPool, StartContainer
from agentgym_sandboxes.host.meter import CallMeter

log = logging.getLogger(__name__)

ANY = SandboxSpec(session=True)
SHORT_S = 5.0  # containers that wait for room look again more often
BACKOFFS_S = (0.2, 0.4, 0.8, 1.6, 3.2, 5.0)

OpenNetwork: TypeAlias = Callable[[Container, Hosts, AsyncExitStack], Awaitable[Mapping[str, str]]]
"""Lets a container reach some hosts until the stack is closed; the environment variables that say how.

Raises UserError for an invalid list of hosts.
"""


class OpenForward(Protocol):
    """See `SessionNetworks.forward`."""

    async def __call__(self, container: Container, target: str, stack: AsyncExitStack) -> int: ...


class Others:
    """What a pool knows of those that share `max_sessions` with it: nothing, for one that is alone.

    short_s: when a container waited last for the memory or the cores of other tasks, by the monotonic clock.
    """

    short_s = -math.inf

    def num_taken(self, pool: SessionPool) -> int:
        """How many sessions they have."""
        return 0

    def look_again(self, pool: SessionPool) -> None:
        """There may be room for a session of theirs."""


class SessionPool(KeptPool):
    """Leases at most `max_sessions` at a time; others wait in turn, at most `lease_timeout_s`.

    Once the first session was asked for, `spare_sessions` containers wait for the next ones. A container is spare,
    then leased, then ending, until it is removed: only then another session may take its place.
    """

    CLOSED = "the sandbox gives no session: it was closed"

    def __init__(
        self,
        config: DockerConfig,
        start_container: StartContainer,
        open_network: OpenNetwork | None = None,
        meter: CallMeter | None = None,
        forward: OpenForward | None = None,
        others: Others | None = None,
        num_cold: int = 0,
    ) -> None:
        """num_cold: sessions before containers wait for the next ones."""
        super().__init__(config, start_container, meter or CallMeter(), "session container", BACKOFFS_S)
        self._open_network = open_network
        self._forward = forward
        self._others = others or Others()
        self._num_cold = num_cold
        self._spare: collections.deque[Container] = collections.deque()
        self._leased: set[Container] = set()
        self._ending: set[Container] = set()  # of sessions
        self._waiting: collections.deque[asyncio.Future[Container]] = collections.deque()

    def gauges(self) -> dict[str, float]:
        """What is true now, by the names in `counts`."""
        waiting = sum(1 for future in self._waiting if not future.done())
        return {counts.SESSIONS_OPEN: len(self._leased), counts.SESSIONS_WAITING: waiting}

    @asynccontextmanager
    async def session(self, spec: SandboxSpec = ANY) -> AsyncIterator[DockerSession]:
        """A session in a container of its own. Raises SandboxUnavailable when none comes free in time."""
        network = spec.network
        if network and self._open_network is None:
            shown = network if isinstance(network, str) else ", ".join(network)
            raise UserError(f"this sandbox gives a session no network, but {shown} is asked for")
        container = await self._lease()
        try:
            async with AsyncExitStack() as stack:
                env: Mapping[str, str] = {}
                if network and self._open_network is not None:
                    env = await self._open_network(container, network, stack)
                forward = None if self._forward is None else partial(self._forward, container, stack=stack)
                session = DockerSession(container, self._config.memory_mib, self._meter, forward)
                stack.push_async_callback(session.close)
                await session.open(self._config, env, spec)
                yield session
        finally:
            if container.lost is not None and not self._closed:
                self._meter.counts[counts.SESSIONS_LOST] += 1
            self._end(container)

    async def _lease(self) -> Container:
        """A container that answers, which no session had before."""
        began_s = time.monotonic()
        self._num_cold -= 1
        try:
            async with asyncio.timeout(self._config.lease_timeout_s):
                container = await self._next()
        except TimeoutError:
            self._meter.queue.add(time.monotonic() - began_s)
            raise self._none_in_time() from None
        self._meter.counts[counts.SESSIONS] += 1
        self._meter.queue.add(time.monotonic() - began_s)
        return container

    async def _next(self) -> Container:
        """Wait in turn. A container that its caller does not take is given up: an engine that went down may have
        taken it along."""
        wait = self._waiting.append
        while True:
            if self._keeper is None and not self._closed:
                self._begin()
            self._check_open()
            future: asyncio.Future[Container] = asyncio.get_running_loop().create_future()
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
        if self._room <= 0:
            return SandboxUnavailable(
                f"no session came free within {timeout_s:g} s: {self._config.max_sessions} are under way. Set "
                "sandbox.options.max_sessions higher, or run fewer episodes at a time."
            )
        if time.monotonic() - self._others.short_s < SHORT_S:
            return SandboxUnavailable(
                f"no session came free within {timeout_s:g} s: tasks use all memory or cores that they may have "
                "together. Set sandbox.options.tasks_memory_mib or tasks_cpus higher, or run fewer episodes at a time."
            )
        return self._trouble(f"no session's container started within {timeout_s:g} s:", "each takes longer than that")

    def _end(self, container: Container) -> None:
        """Ends a session, or an attempt to begin one."""
        self._leased.discard(container)
        self._ending.add(container)
        self._to_remove.append(container)
        self._on_change()

    def _settle(self) -> None:
        for container in [c for c in self._spare if not c.usable]:
            self._spare.remove(container)
            self._to_remove.append(container)
        while self._waiting and (self._waiting[0].done() or (self._spare and self._room > 0)):
            future = self._waiting.popleft()
            if not future.done():
                container = self._spare.popleft()
                self._leased.add(container)
                future.set_result(container)
        while not self._waiting and len(self._spare) > self._num_spares:
            self._to_remove.append(self._spare.pop())  # who waited for it has gone

    @property
    def _room(self) -> int:
        """How many more sessions there is room for."""
        return self._config.max_sessions - self.num_taken - self._others.num_taken(self)

    @property
    def num_taken(self) -> int:
        """Its containers that are leased, or not yet removed after it."""
        return len(self._leased) + len(self._ending)

    @property
    def _num_spares(self) -> int:
        return self._config.spare_sessions if self._num_cold <= 0 else 0

    def give_up_spares(self) -> None:
        """Remove them; there will be some again after a further session."""
        if self._spare and not self._waiting:
            self._num_cold = max(self._num_cold, 1)
            self._on_change()

    @property
    def is_idle(self) -> bool:
        return not self.num_taken and not self._waiting

    def look_again(self) -> None:
        """There may be room, for a session of another pool has ended."""
        self._on_change()

    @property
    def _num_wanted(self) -> int:
        num_waiting = sum(1 for future in self._waiting if not future.done())
        wanted = min(num_waiting, self._room) + self._num_spares
        return wanted - len(self._spare) - self.num_starting

    def _pinged(self) -> list[Container]:
        return [*self._spare, *self._leased]

    def _give_up(self) -> set[Container]:
        containers = {*self._spare, *self._leased, *self._ending}
        self._spare.clear()
        return containers

    def _add_spare(self, container: Container) -> None:
        self._spare.append(container)

    def _removed(self, container: Container) -> None:
        self._ending.discard(container)
        self._on_change()
        self._others.look_again(self)

    def _futures(self) -> list[asyncio.Future[Container]]:
        futures = list(self._waiting)
        self._waiting.clear()
        return futures
