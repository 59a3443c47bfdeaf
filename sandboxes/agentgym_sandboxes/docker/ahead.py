"""Pulls or builds the images of sessions that come next, while others play."""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import Awaitable, Callable, Iterable

from agentgym.errors import InfraError
from agentgym_sandboxes.docker.contexts import BuildContext
from agentgym_sandboxes.docker.failures import ImageUnusable
from agentgym_sandboxes.docker.machine import Machine, Request

log = logging.getLogger(__name__)

AT_A_TIME = 2  # more only wait for the same disk and network


async def make_all(
    requests: Iterable[Request], provide: Callable[[Request], Awaitable[Machine]], has: Callable[[str], Awaitable[bool]]
) -> dict[Request, str]:
    """Build the images of Dockerfiles, look at those that an engine has, and say what is wrong with which.

    Raises InfraError for what is wrong with an engine.
    """
    slots, faults, errors = asyncio.Semaphore(AT_A_TIME), dict[Request, str](), list[InfraError]()

    async def make(request: Request) -> None:
        async with slots:
            try:
                if not errors and (isinstance(request.what, BuildContext) or await has(request.image)):
                    await provide(request)
            except ImageUnusable as error:
                faults[request] = str(error)
            except InfraError as error:
                errors.append(error)

    async with asyncio.TaskGroup() as making:
        for request in requests:
            making.create_task(make(request))
    if errors:
        raise errors[0]
    return faults


class Ahead:
    """Provides images in the order in which they are expected, at most `num_ahead` beyond those that were used."""

    def __init__(self, provide: Callable[[Request], Awaitable[Machine]], num_ahead: int) -> None:
        self._provide = provide
        self._num_ahead = num_ahead
        self._expected: collections.deque[Request] = collections.deque()
        self._seen: set[Request] = set()
        self._ready: dict[Request, None] = {}  # provided or being so, and not used yet; the oldest first
        self._changed = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    def expect(self, requests: Iterable[Request]) -> None:
        """Sessions in these come next, after those that were expected before."""
        for request in requests:
            if request not in self._seen:
                self._seen.add(request)
                self._expected.append(request)
        if not self._workers and self._expected and self._num_ahead:
            self._workers = [asyncio.create_task(self._work()) for _ in range(AT_A_TIME)]
        self._changed.set()

    def used(self, request: Request) -> None:
        """A session asks for it now. One that comes out of order takes the place of the oldest."""
        self._seen.add(request)
        if self._ready:
            del self._ready[request if request in self._ready else next(iter(self._ready))]
        self._changed.set()

    async def close(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            while not self._expected or len(self._ready) >= self._num_ahead:
                self._changed.clear()
                await self._changed.wait()
            request = self._expected.popleft()
            self._ready[request] = None
            try:
                await self._provide(request)
            except InfraError as error:  # whoever asks for it gets it, too
                log.info("no image ahead: %s", error)
