"""Session pools: one for our own image, and one for each other that tasks name, by its id and profile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

from agentgym.sandbox import SandboxUnavailable
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.machine import Machine, Request
from agentgym_sandboxes.docker.session_pool import ANY, Others, SessionPool
from agentgym_sandboxes.docker.sessions import DockerSession

MAX_POOLS = 8
"""Of tasks' images; beyond it, those that were not used for longest are closed, with their warm containers."""

MakePool: TypeAlias = Callable[[Request | None, Others], SessionPool]
"""Makes the pool of a request."""


class SessionPools(Others):
    """Leases sessions; `max_sessions` counts those of all pools. find: what a request means on the engines."""

    def __init__(self, make: MakePool, find: Callable[[Request], Awaitable[Machine]]) -> None:
        self._make = make
        self._find = find
        self._ids: dict[Request, Request] = {}  # by name, and by id
        self._digests: dict[str, str] = {}
        self._pools: dict[Request | None, SessionPool] = {}  # the latest used last
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @asynccontextmanager
    async def session(self, request: Request | None, spec: SandboxSpec = ANY) -> AsyncIterator[DockerSession]:
        """Raises as `SessionPool.session` does, and ImageUnusable."""
        pool = self._pool(request if request is None else await self._by_id(request))
        async with pool.session(spec) as session:
            yield session

    def num_taken(self, pool: SessionPool) -> int:
        """How many sessions the others of a pool have, without those for which an episode waits that has one."""
        counted = {key: one for key, one in self._pools.items() if key is None or not key.beside}
        return sum(one.num_taken for one in counted.values() if one is not pool)

    def look_again(self, pool: SessionPool) -> None:
        """A session of a pool has ended: the next one may be of another."""
        for one in self._pools.values():
            if one is not pool:
                one.look_again()

    def gauges(self) -> dict[str, float]:
        """What is true now, of all pools together."""
        found = [pool.gauges() for pool in self._pools.values()]
        return {name: sum(one[name] for one in found) for name in (counts.SESSIONS_OPEN, counts.SESSIONS_WAITING)}

    async def close(self) -> None:
        """Remove every container."""
        self._closed = True
        await asyncio.gather(*(pool.close() for pool in self._pools.values()), *self._closing)

    async def _by_id(self, request: Request) -> Request:
        if request not in self._ids:
            machine = await self._find(request)
            digest, what = next(iter(machine.image.digests), ""), request.what
            if digest and isinstance(what, str) and "@" not in what:  # so that no engine pulls another one later
                what = f"{what if ':' not in what.rpartition('/')[2] else what.rpartition(':')[0]}@{digest}"
            by_id = replace(request, image=machine.image.image_id, what=what)
            if machine.image.is_frozen:  # few sessions have it, and no other image ever
                return replace(by_id, once=True, only_on=machine.url)
            self._ids[request] = by_id
            self._digests[request.name] = next(iter(machine.image.digests), machine.image.image_id)
        return self._ids[request]

    def images(self) -> dict[str, str]:
        """The digest, or else the id, of each image that a session was asked for, by its name."""
        return dict(self._digests)

    def give_up_spares(self) -> None:
        """Remove what nobody uses: others wait for its memory."""
        self.short_s = time.monotonic()
        for pool in self._pools.values():
            pool.give_up_spares()

    def _pool(self, request: Request | None) -> SessionPool:
        if self._closed:
            raise SandboxUnavailable(SessionPool.CLOSED)
        pool = self._pools.pop(request, None)
        if pool is None:
            pool = self._make(request, self)
        self._pools[request] = pool
        idle = [key for key, one in self._pools.items() if key is not None and one is not pool and one.is_idle]
        for key in idle[: max(0, len(self._pools) - MAX_POOLS)]:
            closing = asyncio.create_task(self._pools.pop(key).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return pool
