"""What the pool of calls and that of sessions do alike: start containers until one is there, and remove all."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from agentgym.errors import InfraError
from agentgym.sandbox import SandboxDiskFull, SandboxUnavailable

log = logging.getLogger(__name__)


class Closing(Protocol):
    name: str

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closing)


class Starts(Generic[C]):
    """Starts containers, each however often that takes: engines that fail are left alone by circuit breakers.

    kind: of the containers, in words. waits_s: between the tries of one; the last counts for all later ones.
    """

    def __init__(
        self, start: Callable[[Callable[[], None]], Awaitable[C]], kind: str, waits_s: Sequence[float]
    ) -> None:
        self.last_error: InfraError | None = None
        self.num_under_way = 0
        self._start = start
        self._kind = kind
        self._waits_s = waits_s

    async def one(
        self, on_change: Callable[[], None], is_too_many: Callable[[], bool] = lambda: False
    ) -> C | None:
        """A started container, or None when there were too many before one started. `num_under_way` is one less."""
        try:
            for wait_s in itertools.chain(self._waits_s, itertools.repeat(self._waits_s[-1])):
                try:
                    container = await self._start(on_change)
                except InfraError as error:
                    level = logging.DEBUG if str(error) == str(self.last_error) else logging.WARNING
                    self.last_error = error
                    log.log(level, "%s did not start: %s", self._kind, error)
                else:
                    self.last_error = None
                    return container
                await asyncio.sleep(wait_s)
                if is_too_many():
                    break
        finally:
            self.num_under_way -= 1
        return None

    def trouble(self, text: str, why_else: str = "") -> SandboxUnavailable:
        """That there was none in time, with the latest error: of its kind where a person can do something about it."""
        kind = SandboxDiskFull if isinstance(self.last_error, SandboxDiskFull) else SandboxUnavailable
        return kind(f"{text} {self.last_error or why_else}")


async def close_all(containers: Iterable[Closing]) -> None:
    """Remove containers side by side; one that can't be removed ends by itself, because its input is closed."""
    closed = list(containers)
    results = await asyncio.gather(*(container.close() for container in closed), return_exceptions=True)
    for container, result in zip(closed, results, strict=True):
        if isinstance(result, BaseException):
            log.warning("container %s was not removed: %s", container.name, result)
