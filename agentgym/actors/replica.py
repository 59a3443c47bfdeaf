"""One replica of a service: started, admitted, probed, and replaced when it dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from agentgym.actors.endpoint import LifecycleActor
from agentgym.actors.gate import Gate
from agentgym.actors.process_group import NoAnswer, ProcessDied, ProcessGroup
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError

log = logging.getLogger(__name__)
A = TypeVar("A", bound=LifecycleActor)


class Replica(Generic[A]):
    """`supervise` runs for the replica's whole life; the service routes to it while it is up."""

    group: ProcessGroup[A]  # the newest one; there is one from the first start on

    def __init__(
        self,
        name: str,
        launch: Callable[[str], ProcessGroup[A]],
        *,
        settings: ServiceSettings,
        admit: Callable[[ProcessGroup[A]], Awaitable[None]] | None,
        changed: Callable[[Replica[A]], None],
        starts: Gate | None = None,
    ) -> None:
        """launch: spawns a process group of the given name.

        admit: waits until a started group has what it needs to serve, for example the current weights. changed: called
        after it came up or went down. starts: inside of which groups are started, where that is not possible at any
        time.
        """
        self.name = name
        self.up = False
        self.leaving = False  # it gets no new request, and ends when it has answered those that it has
        self.load = 0  # requests it has now
        self.respawns = 0
        self.missed_probes = 0
        self._launch = launch
        self._settings = settings
        self._admit = admit
        self._changed = changed
        self._starts = starts or Gate()
        self._launches = 0
        self._deaths_in_a_row = 0

    @property
    def has_room(self) -> bool:
        return self.up and not self.leaving and self.load < self._settings.max_waiting

    async def supervise(self) -> None:
        """Keep the replica alive until cancelled, or until it dies while it is leaving. It can be called again then.

        Raises what the first start raised, and InfraError when it died too often. A process that is killed or hangs
        in the first start is started once more: where that is no accident, it comes again.
        """
        self._deaths_in_a_row = 0
        try:
            reason = await self._live_once(first=True)
        except (ProcessDied, NoAnswer) as error:
            self.respawns += 1
            await self._back_off(f"start failed: {error}")
            reason = await self._live_once(first=True)
        while not self.leaving:
            self.respawns += 1
            await self._back_off(reason)
            reason = await self._live_once(first=False)

    async def _live_once(self, *, first: bool) -> str:
        """One process group from launch to death; returns why it died."""
        loop = asyncio.get_running_loop()
        # no name twice: what is known of a process group, for example its weights, is known by its name
        name = f"{self.name}-{self._launches}" if self._launches else self.name
        self._launches += 1
        async with self._starts.inside():
            self.group = group = self._launch(name)
            try:
                await self._start(group)
                # No wait between the last check of `admit` and this line: what it serves with is current.
                self._set_up(True)
            except BaseException as error:
                if isinstance(error, NoAnswer):
                    group.give_up(str(error))  # it is killed, and not asked to end
                await self._end(group)
                if first or not isinstance(error, Exception):
                    raise
                return f"start failed: {type(error).__name__}: {error}"
        up_since = loop.time()
        try:
            reason = await self._until_dead(group)
            if loop.time() - up_since > self._settings.stable_after_s:
                self._deaths_in_a_row = 0
            return reason
        finally:
            await self._end(group)

    async def _start(self, group: ProcessGroup[A]) -> None:
        await group.start(timeout_s=self._settings.start_timeout_s)
        if self._admit is not None:
            await self._admit(group)
        if group.dead.done():
            raise ProcessDied(group.dead.result())

    async def _end(self, group: ProcessGroup[A]) -> None:
        self._set_up(False)
        stopping = asyncio.ensure_future(group.stop(timeout_s=self._settings.stop_timeout_s))
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping  # the service is closing; an interrupted stop would leave processes
            raise

    async def _until_dead(self, group: ProcessGroup[A]) -> str:
        """Probe the group while it answers no other call, until it is dead or has missed too many probes in a row.

        What answers other calls lives: a probe would wait behind thousands of them.
        """
        missed = 0
        while True:
            answered = group.num_answers
            await asyncio.wait({group.dead}, timeout=self._settings.probe_every_s)
            if group.dead.done():
                return group.dead.result()
            if group.num_answers > answered:
                missed = 0
                continue
            try:
                await group.call(LifecycleActor.probe, timeout_s=self._settings.probe_timeout_s)
                missed = 0
            except ProcessDied as error:
                return str(error)
            except InfraError as error:
                group.see_exits()
                if group.dead.done():
                    return group.dead.result()
                if group.num_answers > answered:
                    missed = 0
                    continue
                missed += 1
                self.missed_probes += 1
                log.warning("%s missed probe %d of %d", self.name, missed, self._settings.max_missed_probes)
                if missed >= self._settings.max_missed_probes:
                    group.give_up(f"{missed} probes in a row failed; the last: {error}")

    async def _back_off(self, reason: str) -> None:
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > self._settings.max_respawns:
            raise InfraError(
                f"{self.name} died {self._deaths_in_a_row} times in a row and is not started again "
                f"(max_respawns is {self._settings.max_respawns}). The last time: {reason}"
            )
        doubled_s = self._settings.backoff_s * 2 ** (self._deaths_in_a_row - 1)
        wait_s = min(doubled_s, self._settings.max_backoff_s)
        log.warning("%s is down and starts again in %.1f s: %s", self.name, wait_s, reason)
        await asyncio.sleep(wait_s)

    def _set_up(self, up: bool) -> None:
        self.up = up
        self._changed(self)
