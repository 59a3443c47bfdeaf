"""Several Docker engines as one: containers go to the least loaded that is healthy, at a rate it can take."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable

from agentgym.errors import InfraError
from agentgym.sandbox import SandboxDiskFull, SandboxUnavailable
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.breaker import Circuit
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.engine import Engine, OwnedContainer
from agentgym_sandboxes.docker.failures import EngineError, EngineUnreachable, ImageGone, ImageUnusable, NoEngineAnswers
from agentgym_sandboxes.docker.image import ImageChoice
from agentgym_sandboxes.docker.image_store import remove_frozen
from agentgym_sandboxes.docker.machine import Machine, Request
from agentgym_sandboxes.docker.member import Member
from agentgym_sandboxes.docker.profile import SettingsOf, container_settings
from agentgym_sandboxes.docker.volumes import Volumes, remove, unused
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.host.reaper import is_forgotten, is_orphan

log = logging.getLogger(__name__)

MAX_CONTAINERS_PER_ENGINE = 4  # by default
ASSIGN_AGAIN_S = 0.1
NUM_TRIES = 2  # beyond the last, of an image that is evicted again and again


class EngineGroup:
    """Places containers, looks after the engines, removes what dead owners left on them.

    owner: the label of the containers that are ours.
    """

    def __init__(
        self,
        config: DockerConfig,
        image: ImageChoice | None,
        owner: str,
        meter: CallMeter,
        settings_of: SettingsOf = container_settings,
    ) -> None:
        self.members = [Member(url, config) for url in config.urls]
        self._config = config
        self._image = image
        self._owner = owner
        self._meter = meter
        self._settings_of = settings_of
        self._volumes = Volumes(config.volumes, owner)
        self._watch: asyncio.Task[None] | None = None
        self.on_short: Callable[[], None] = lambda: None  # a task's container waits for room

    async def open(self) -> None:
        """Connect to all. Raises SandboxUnavailable when none is available, or when one lacks what we need.

        An engine that does not answer is tried again later, as long as another does.
        """
        connections = (member.connect(self._image, self._meter) for member in self.members)
        try:
            results = await asyncio.gather(*connections, return_exceptions=True)
        except BaseException:  # cancelled: some may be connected already
            await self.close()
            raise
        failures: list[Exception] = []
        for member, result in zip(self.members, results, strict=True):
            if isinstance(result, Exception):
                failures.append(result)
                member.reach.failed(result)
            elif isinstance(result, BaseException):
                raise result
        reached = [member for member in self.members if member.engine is not None]
        for failure in failures:
            if not reached or not isinstance(failure, NoEngineAnswers):  # all else is for a person to settle
                await self.close()
                if len(failures) == 1:
                    raise failure
                raise SandboxUnavailable("; ".join(str(one) for one in failures))
            log.warning("going on without an engine: %s", failure)
        identities = [member.facts.identity for member in reached if member.facts is not None]
        if len(set(identities)) < len(identities):
            log.warning("two of the engines %s have one identity; is it one engine?", [m.url for m in reached])

    def watch(self) -> None:
        """Begin to look after the engines, until closed."""
        self._watch = asyncio.create_task(self._look_after_all())
        self._watch.add_done_callback(_log_end)

    async def close(self) -> None:
        """Safe to call twice."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        engines = self.engines
        for member in self.members:
            member.engine = None
        await asyncio.gather(*(engine.close() for engine in engines))

    @property
    def engines(self) -> list[Engine]:
        return [member.engine for member in self.members if member.engine is not None]

    @property
    def default_pool_size(self) -> int:
        """One container a core of each engine, at most so many."""
        cores = (m.facts.cpus if m.facts else os.cpu_count() or 1 for m in self.members)
        return sum(min(MAX_CONTAINERS_PER_ENGINE, num) for num in cores)

    def gauges(self) -> dict[str, float]:
        return {counts.ENGINES_OPEN: sum(member.is_open for member in self.members)}

    async def start_container(
        self,
        on_change: Callable[[], None],
        *,
        session: bool = False,
        request: Request | None = None,
        wait_s: float = 0.0,
    ) -> Container:
        """Start a container on the least loaded engine that is healthy, as soon as its limits allow.

        request: of a session in an image that a task names. wait_s: how long to wait for an engine to come back.
        Raises SandboxUnavailable with each engine's last error when there is none, ImageUnusable for a task's image,
        InfraError when the start failed.
        """
        for _ in range(NUM_TRIES if request is not None else 1):
            try:
                return await self._start(on_change, session, request, wait_s)
            except _ImageLeft:  # it was evicted since: it is made again
                pass
        return await self._start(on_change, session, request, wait_s, last=True)

    async def _start(
        self,
        on_change: Callable[[], None],
        session: bool,
        request: Request | None,
        wait_s: float,
        *,
        last: bool = False,
    ) -> Container:
        member = await self._assign(wait_s, request.only_on if request is not None else "")
        engine, facts = member.engine, member.facts
        assert engine is not None and facts is not None
        machine = await member.machine(request, self._owner) if request is not None else None
        room = member.room if request is not None and request.profile == "task" else None
        share = await room.take(request, self.on_short) if room is not None and request is not None else None
        member.num_starting += 1
        member.starts.begin()
        try:
            async with member.in_flight:
                mounts = await self._volumes.on(engine, member.image_id) if session else []
                await member.limit.take()
                container = await Container.start(
                    engine,
                    self._config,
                    member.image_id,
                    self._owner,
                    remapped=facts.remapped,
                    on_change=on_change,
                    settings_of=self._settings_of,
                    for_session=session,
                    mounts=mounts,
                    machine=machine,
                )
            if share is not None:
                share.container = container
        except InfraError as error:
            self._meter.counts[counts.START_FAILURES] += 1
            typed = self._image_gone(member, error) or member.typed(error)
            if isinstance(error, EngineUnreachable):
                member.starts.abandoned()
                member.reach.failed(typed)
            elif machine is not None and not isinstance(typed, SandboxDiskFull):  # the image's fault, not the engine's
                member.starts.abandoned()
                if request is not None and not last and _no_such_image(error) and not machine.image.is_frozen:
                    member.forget(request)
                    raise _ImageLeft from error
                raise ImageUnusable(f"no session starts in image {machine.request.name}: {error}") from error
            else:
                member.starts.failed(typed)
            raise self._of_all(typed) from error
        except BaseException:
            member.starts.abandoned()
            raise
        finally:
            member.num_starting -= 1
            if room is not None and share is not None and share.container is None:
                room.free(share)
        member.starts.succeeded()
        member.hold(container)
        self._meter.start.add(container.start_s)
        return container

    def _image_gone(self, member: Member, error: InfraError) -> InfraError | None:
        """The error of a start whose image was removed since we connected, in words that help."""
        gone = _no_such_image(error) and self._image is not None
        return ImageGone(self._image.missing_text(member.url)) if gone and self._image is not None else None

    def _of_all(self, error: InfraError) -> InfraError:
        """An image that another engine has is not gone."""
        others = (member for member in self.members if not isinstance(member.trouble, ImageGone))
        return SandboxUnavailable(str(error)) if isinstance(error, ImageGone) and any(others) else error

    async def machine(self, request: Request) -> Machine:
        """What the image is on one of the engines; one that only some have is looked for.

        Raises as `start_container` does.
        """
        first = await self._assign(0.0)
        others = [one for one in self.members if one.is_ready and one is not first] if request.is_by_id else []
        for member in others and [first, *others]:
            if member.engine is not None and await member.engine.image(request.image) is not None:
                return await member.machine(request, self._owner)
        return await first.machine(request, self._owner)

    async def has_image(self, name: str) -> bool:
        """Whether an engine has it, so that nothing has to be fetched to look at it. Raises InfraError."""
        return any(
            [member.engine is not None and await member.engine.image(name) is not None for member in self.members]
        )

    async def went_with_engine(self, name: str) -> bool:
        """Whether a lost container's engine is gone too."""
        for member in self.members:
            if member.engine is not None and name in member.engine.names:
                try:
                    await member.engine.ping(self._config.ping_timeout_s)
                except EngineUnreachable as error:
                    member.reach.failed(error)
                    return True
        return False

    async def reap(self, say: Callable[[str], None] = log.info) -> int:
        """Remove what dead owners left, and what we asked for and gave up; how many there were.

        Raises InfraError when an engine or a removal failed, after all others were tried.
        """
        count, errors = 0, []
        for engine in self.engines:
            try:
                found = await engine.owned()
            except InfraError as error:
                errors.append(error)
                continue
            # Judged all at once: what is ours and ends while others are removed does not count.
            reasons = [(owned.container_id, self._why_to_remove(engine, owned)) for owned in found]
            for container_id, why in reasons:
                if why:
                    try:
                        await engine.remove(container_id)
                    except InfraError as error:
                        errors.append(error)
                    else:
                        say(f"removed container {container_id[:12]} {why}")
                        count += 1
            try:
                await remove_frozen(engine, self._owner, say)
            except InfraError as error:
                errors.append(error)
        self._meter.counts[counts.REAPED] += count
        if errors:
            raise errors[0]
        return count

    async def fill_volumes(self) -> None:
        """Give every engine that answers the volumes now, rather than with its first session. Raises InfraError."""
        reached = [member for member in self.members if member.engine is not None]
        await asyncio.gather(*(self._volumes.on(one.engine, one.image_id) for one in reached if one.engine is not None))

    async def clean_volumes(self, say: Callable[[str], None]) -> int:
        """Remove the volumes that no container uses; how many there were. Raises InfraError."""
        found = [(engine, name, what) for engine in self.engines for name, what in (await unused(engine)).items()]
        count = 0
        for engine, name, what in found:
            try:
                await remove(engine, name)
            except EngineError as error:
                if error.status not in (404, 409):  # removed by another, used by a run that began
                    raise
            else:
                say(f"removed volume {name}, a copy of {what}")
                count += 1
        return count

    async def tidy(self) -> None:
        """Reap as far as possible: what can't be removed does not stop the rest."""
        try:
            await self.reap()
        except InfraError as error:
            log.warning("could not remove all containers of dead owners: %s", error)

    def _why_to_remove(self, engine: Engine, owned: OwnedContainer) -> str:
        if owned.owner == self._owner:
            return "" if owned.name in engine.names else "that nobody waits for"
        if is_orphan(owned.owner):
            return f"of {owned.owner}, which is gone"
        return "that never ran for long" if is_forgotten(owned.state, owned.age_s) else ""

    async def _assign(self, wait_s: float, only_on: str = "") -> Member:
        """The engine to start on."""
        end_s = time.monotonic() + wait_s
        while True:
            ready = [member for member in self.members if member.is_ready and only_on in ("", member.url)]
            if ready:
                return min(ready, key=lambda member: member.load)
            if time.monotonic() >= end_s:
                raise self._none_ready()
            await asyncio.sleep(ASSIGN_AGAIN_S)

    def _none_ready(self) -> SandboxUnavailable:
        troubles = [member.trouble for member in self.members]
        full = all(isinstance(trouble, SandboxDiskFull) for trouble in troubles)
        texts = [f"{m.url}: {t or 'a start is being tried'}" for m, t in zip(self.members, troubles, strict=True)]
        gone = all(isinstance(trouble, ImageGone) for trouble in troubles)
        return (SandboxDiskFull if full else ImageGone if gone else SandboxUnavailable)(
            f"no Docker engine takes containers. {'; '.join(texts)}"
        )

    async def _look_after_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for member in self.members:
                tasks.create_task(self._look_after(member))
            tasks.create_task(self._reap_again())

    async def _look_after(self, member: Member) -> None:
        """Ping the engine, more often while it is silent; connect when it never was."""
        while True:
            await asyncio.sleep(min(1.0, self._config.ping_every_s) if member.trouble else self._config.ping_every_s)
            if not member.reach.admits:
                continue
            was = member.reach.circuit
            member.reach.begin()
            try:
                if member.engine is None:
                    await member.connect(self._image, self._meter)
                else:
                    await member.engine.reconnect()
                    await member.engine.ping(self._config.ping_timeout_s)
            except (InfraError, ValueError) as error:
                member.reach.failed(error)
                if member.reach.circuit != was == Circuit.CLOSED:
                    log.warning("nothing is started on the engine at %s: %s", member.url, error)
            else:
                member.reach.succeeded()
                if was != Circuit.CLOSED:
                    log.warning("the engine at %s answers again", member.url)

    async def _reap_again(self) -> None:
        while True:
            await asyncio.sleep(self._config.reap_every_s)
            await self.tidy()


class _ImageLeft(Exception):
    """A task's image was removed after it had been provided."""


def _no_such_image(error: InfraError) -> bool:
    return isinstance(error, EngineError) and error.status == 404 and "no such image" in str(error).lower()


def _log_end(watch: asyncio.Task[None]) -> None:
    if not watch.cancelled() and watch.exception() is not None:
        log.error("the engines are no longer looked after", exc_info=watch.exception())
