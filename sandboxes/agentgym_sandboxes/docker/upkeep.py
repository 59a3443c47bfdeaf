"""What the pool of calls and that of sessions have in common: a task that starts, pings and removes containers."""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import SandboxDiskFull, SandboxUnavailable
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.failures import ImageGone, ImageUnusable
from agentgym_sandboxes.host.backend import OTHER_LOOP
from agentgym_sandboxes.host.meter import CallMeter

log = logging.getLogger(__name__)


StartContainer: TypeAlias = Callable[[Callable[[], None]], Awaitable[Container]]
"""Starts a container that calls back when a slot came free or it was lost."""


class KeptPool(ABC):
    """Containers and those who wait for one. A subclass says how many it wants, and who gets which.

    start: of a container, which calls back when it changes. kind: of the containers, in words. waits_s: between the
    tries to start one; the last counts for all later ones. Engines that fail are left alone by circuit breakers.
    """

    CLOSED = "the sandbox was closed"

    def __init__(
        self, config: DockerConfig, start: StartContainer, meter: CallMeter, kind: str, waits_s: Sequence[float]
    ) -> None:
        self.num_starting = 0
        self._config = config
        self._start_container = start
        self._meter = meter
        self._kind = kind
        self._waits_s = waits_s
        self._start_error: InfraError | None = None  # the latest
        self._to_remove: list[Container] = []
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    @abstractmethod
    def _num_wanted(self) -> int:
        """How many more containers to start, or less than 0."""

    @abstractmethod
    def _pinged(self) -> Iterable[Container]:
        """The containers that are looked after."""

    @abstractmethod
    def _give_up(self) -> Iterable[Container]:
        """All containers that are not in `_to_remove`; those that nobody uses are forgotten."""

    @abstractmethod
    def _add_spare(self, container: Container) -> None:
        """Take one that was started."""

    @abstractmethod
    def _settle(self) -> None:
        """Give containers to those who wait; move those that are of no use to `_to_remove`."""

    @abstractmethod
    def _futures(self) -> Iterable[asyncio.Future[Any]]:
        """Takes the futures of waiting callers, which are forgotten."""

    def _is_removable(self, container: Container) -> bool:
        return True

    def _removed(self, container: Container) -> None:  # noqa: B027  # most pools have nothing to do then
        """It is gone."""

    async def close(self) -> None:
        """Remove every container; calls and sessions under way are lost, those waiting are refused."""
        self._closed = True
        self._refuse_waiting(self.CLOSED)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        containers = list({*self._give_up(), *self._to_remove})
        self._to_remove.clear()
        # One that can't be removed ends by itself, because its input is closed.
        results = await asyncio.gather(*(one.close() for one in containers), return_exceptions=True)
        for container, result in zip(containers, results, strict=True):
            if isinstance(result, BaseException):
                log.warning("container %s was not removed: %s", container.name, result)

    def _begin(self) -> None:
        """Look after the containers from now on, until closed."""
        self._changed.set()
        self._keeper = asyncio.create_task(self._keep())

    def _check_open(self) -> None:
        """Raises SandboxUnavailable, UserError."""
        if self._closed:
            raise SandboxUnavailable(self.CLOSED)
        assert self._keeper is not None
        if self._keeper.get_loop() is not asyncio.get_running_loop():
            raise UserError(OTHER_LOOP)
        if self._keeper.done():
            raise SandboxUnavailable(f"the pool of {self._kind}s broke; its log says why")

    def _on_change(self) -> None:
        self._settle()
        if self._to_remove or self._num_wanted > 0:
            self._changed.set()

    def _trouble(self, text: str, why_else: str = "") -> SandboxUnavailable:
        """The error that there was none in time, with the latest cause: of its kind if a person can do something about
        it.
        """
        kind = SandboxDiskFull if isinstance(self._start_error, SandboxDiskFull) else SandboxUnavailable
        return kind(f"{text} {self._start_error or why_else}")

    def _refuse_waiting(self, why: str, kind: type[SandboxUnavailable] = SandboxUnavailable) -> None:
        for future in self._futures():
            if not future.done():
                future.set_exception(kind(why))

    async def _keep(self) -> None:
        """Start what is wanted and remove what is not, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._ping_again())
                while True:
                    await self._changed.wait()
                    self._changed.clear()
                    for container in [one for one in self._to_remove if self._is_removable(one)]:
                        self._to_remove.remove(container)
                        tasks.create_task(self._remove(container))
                    for _ in range(self._num_wanted):
                        self.num_starting += 1
                        tasks.create_task(self._add())
        except Exception as error:
            log.exception("the pool of %ss broke", self._kind)
            self._refuse_waiting(f"the pool of {self._kind}s broke: {error}")
            raise

    async def _add(self) -> None:
        """Start one container, as long as one is wanted."""
        try:
            container = await self._started()
        finally:
            self.num_starting -= 1
        if container is not None:
            self._add_spare(container)
            self._on_change()

    async def _started(self) -> Container | None:
        """None when there were too many before one started."""
        for wait_s in itertools.chain(self._waits_s, itertools.repeat(self._waits_s[-1])):
            try:
                container = await self._start_container(self._on_change)
            except InfraError as error:
                level = logging.DEBUG if str(error) == str(self._start_error) else logging.WARNING
                self._start_error = error
                log.log(level, "a %s did not start: %s", self._kind, error)
                if isinstance(error, ImageGone) and not any(True for _ in self._pinged()):
                    kind = ImageUnusable if isinstance(error, ImageUnusable) else SandboxUnavailable
                    self._refuse_waiting(str(error), kind)  # no wait helps; it starts again once there is an image
            else:
                self._start_error = None
                return container
            await asyncio.sleep(wait_s)
            if self._num_wanted < 0:
                break
        return None

    async def _remove(self, container: Container) -> None:
        try:
            await container.close()
        except InfraError as error:
            log.warning("container %s was not removed: %s", container.name, error)
        except asyncio.CancelledError:
            self._to_remove.append(container)  # `close` waits for its end
            raise
        self._removed(container)

    async def _ping_again(self) -> None:
        """The agents end when they receive nothing for long; a session may be idle for longer."""
        while True:
            await asyncio.sleep(self._config.ping_every_s)
            pings = [container.ping() for container in self._pinged()]
            for result in await asyncio.gather(*pings, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, InfraError):
                    raise result
            self._on_change()  # one may have become too old
