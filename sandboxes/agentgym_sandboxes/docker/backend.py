"""The Docker sandbox: a warm pool of containers on one engine or several; grades and runs in it, cleans up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from uuid import uuid4

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import Capabilities, Limits, RunStatus, SandboxUnavailable, Session
from agentgym.types import SandboxSpec
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.ahead import Ahead, make_all
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.engines import EngineGroup
from agentgym_sandboxes.docker.image import ImageChoice, provide_image, reference_of
from agentgym_sandboxes.docker.layer import PackageLayer
from agentgym_sandboxes.docker.machine import Request, request_of
from agentgym_sandboxes.docker.member import Member
from agentgym_sandboxes.docker.pool import Pool
from agentgym_sandboxes.docker.profile import SettingsOf, container_settings
from agentgym_sandboxes.docker.session_network import SessionNetworks, allowed_by
from agentgym_sandboxes.docker.session_pool import Others, SessionPool
from agentgym_sandboxes.docker.session_pools import SessionPools
from agentgym_sandboxes.docker.wheels import ASK, FIND, ImagePython
from agentgym_sandboxes.host.backend import NOT_STARTED, AgentBackend, Answer
from agentgym_sandboxes.host.reaper import owner_label

MAX_BESIDE = 1 << 16  # sessions for which episodes wait that have one


class DockerBackend(AgentBackend):
    """A sandbox that is started once a run. See `DockerConfig` for what can be set."""

    name = "docker"

    def __init__(self, config: DockerConfig | None = None, settings_of: SettingsOf = container_settings) -> None:
        super().__init__()
        self.config = config or DockerConfig()
        self._settings_of = settings_of
        self._image = self.config.image or reference_of(self.config.requirements)
        self._owner = f"{owner_label()}:{uuid4().hex[:8]}"  # of this object, among others of this process
        self._meter.counts.update(dict.fromkeys(counts.COUNTS, 0))
        self._group: EngineGroup | None = None
        self._pool: Pool | None = None
        self._sessions: SessionPools | None = None
        self._ahead: Ahead | None = None

    def supports(self, spec: SandboxSpec) -> bool:
        """Any image for sessions. In a task's container it has the memory that it asks for."""
        request = request_of(spec, self.config, self._image) if spec.session else None
        fits = spec.memory_mib <= self.config.memory_mib or (request is not None and request.profile == "task")
        return fits and (spec.session or spec.image in (None, self._image))

    async def probe(self) -> Capabilities:
        """What it enforces here.

        Raises SandboxUnavailable when no engine answers, an image is missing, or limits can't be enforced.
        """
        image = self._new_choice()
        group = self._new_group(image)
        await group.open()
        try:
            facts = [member.facts for member in group.members if member.facts is not None]
            places = [f"{m.facts.detail} at {m.url}" for m in group.members if m.facts is not None]
            image_id = next(member.image_id for member in group.members if member.image_id)
            if (name := self.config.session_image) is not None:  # before a run begins, not at its first session
                await group.machine(Request(name, "", 0, name, what=name))
        finally:
            await group.close()
        contents = f" with {', '.join(image.packages)}" if image.packages else ""
        return Capabilities(
            backend=self.name,
            detail=f"{'; '.join(places)}, image {self._image} ({image_id[7:19]}){contents}",
            isolated=True,
            full_python=True,
            network_off=True,
            memory_limit=all(one.memory_limit for one in facts),
            process_limit=all(one.process_limit for one in facts),
            per_call_uid=True,
            seccomp=all(one.seccomp for one in facts),
            disk_limit=True,
            sessions=True,
            network_allow_list=True,
            any_image=True,
        )

    async def _start(self) -> None:
        group = self._group = self._new_group(self._new_choice())
        try:
            await group.open()
            await group.tidy()
            await group.fill_volumes()
            size = self.config.pool_size or group.default_pool_size
            self._pool = Pool(self.config, group.start_container, size, self._meter, group.went_with_engine)
            await self._pool.start()
            max_bytes = self.config.session_network_mib << 20
            networks = SessionNetworks(max_bytes, self._meter.counts, self.config.max_sessions)

            def make_pool(request: Request | None, others: Others) -> SessionPool:
                start = partial(group.start_container, session=True, request=request)
                config = self.config
                if request is not None and (request.once or request.beside):
                    config = replace(config, spare_sessions=0)
                if request is not None and request.beside:  # to wait for those that wait for it would never end
                    config, others = replace(config, max_sessions=MAX_BESIDE), Others()
                num_cold = 2 if request is not None and request.profile == "task" else 0
                return SessionPool(config, start, networks.open, self._meter, networks.forward, others, num_cold)

            self._sessions = SessionPools(make_pool, group.machine)
            group.on_short = self._sessions.give_up_spares
            self._ahead = Ahead(group.machine, self.config.images_ahead)
            group.watch()
        except BaseException as error:
            await asyncio.shield(asyncio.create_task(self._stop()))
            if isinstance(error, InfraError) and not isinstance(error, SandboxUnavailable):
                raise SandboxUnavailable(f"no sandbox container could be started: {error}") from error
            raise

    async def _stop(self) -> None:
        ahead, self._ahead = self._ahead, None
        sessions, self._sessions = self._sessions, None
        pool, self._pool = self._pool, None
        group, self._group = self._group, None
        if ahead is not None:
            await ahead.close()
        if sessions is not None:
            await sessions.close()
        if pool is not None:
            await pool.close()
        if group is not None:
            await group.close()

    async def _call(
        self, op: str, blobs: Sequence[bytes], limits: Limits, answer_of: Callable[[Frame], Answer]
    ) -> Answer:
        if self._pool is None:
            raise SandboxUnavailable(NOT_STARTED)
        return await self._pool.call(op, blobs, limits, answer_of)

    @property
    def _num_at_once(self) -> int:
        return self.config.slots

    def session(self, *, network: tuple[str, ...] = ()) -> AbstractAsyncContextManager[Session]:
        """A container leased for an episode. Raises UserError for a network that names no hosts."""
        return self.session_for(SandboxSpec(session=True, network=network))

    def session_for(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Session]:
        """The same, in the image that the spec names and under its profile."""
        allowed_by(spec.network)
        if self._sessions is None:
            raise SandboxUnavailable(NOT_STARTED)
        request = request_of(spec, self.config, self._image)
        if self._ahead is not None and request is not None:
            self._ahead.used(request)
        return self._sessions.session(request, replace(spec, network=()) if request and request.bridge else spec)

    def expect(self, specs: Iterable[SandboxSpec]) -> None:
        """Pull or build their images, in this order, while others play."""
        found = [request_of(spec, self.config, self._image) for spec in specs if spec.session]
        if self._ahead is not None:
            self._ahead.expect(one for one in found if one is not None and not one.is_by_id)

    async def make_images(self, specs: Iterable[SandboxSpec]) -> dict[SandboxSpec, str]:
        """With a bound on what images take, only of the first ones, which stay until their sessions open."""
        wanted: dict[Request, list[SandboxSpec]] = {}
        for spec in specs:
            request = request_of(spec, self.config, self._image) if spec.session else None
            if request is not None:
                wanted.setdefault(replace(request, memory_mib=0, cpus=0.0, beside=False), []).append(spec)
        if self._group is None:
            raise SandboxUnavailable(NOT_STARTED)
        most = None if self.config.images_gb is None and self.config.images_ahead else self.config.images_ahead
        faults = await make_all(islice(wanted, most), self._group.machine, self._group.has_image)
        return {spec: fault for request, fault in faults.items() for spec in wanted[request]}

    def images(self) -> dict[str, str]:
        """Of the tasks, by the name or the folder that they gave: the digest, or the id of one that has none."""
        return {} if self._sessions is None else self._sessions.images()

    def metrics(self) -> dict[str, float]:
        """Counts and times since the start, under the names in `counts.py` and `meter.py`."""
        gauges = dict.fromkeys(counts.GAUGES, 0.0)
        if self._pool is not None and self._group is not None:
            gauges |= self._pool.gauges() | self._group.gauges()
        if self._sessions is not None:
            gauges |= self._sessions.gauges()
        return self._meter.metrics(gauges)

    async def build(self, say: Callable[[str], None], *, pull: str | None = None) -> str:
        """Pull the image by digest, or build it with debootstrap, on every engine; its id.

        With packages in the config, they are added to it. Raises UserError for packages that are unavailable.
        """
        if self.config.image is not None:
            raise UserError(
                f"sandbox.options.image is {self.config.image!r}, an image of your own; what is built here is ours. "
                "Leave it out, or name it with its digest to --pull."
            )
        requirements = self.config.requirements
        layer = PackageLayer(requirements=requirements, ask=self._ask_python) if requirements else None
        group = self._new_group(None)
        await group.open()
        try:
            image = await provide_image(group.engines, self.config.mirror, pull, say, layer)
        finally:
            await group.close()
        if layer is not None:
            await self._try_packages(say)
        return image

    @asynccontextmanager
    async def engines(self) -> AsyncIterator[list[Member]]:
        """The engines that answer, for a look at their images; nothing else is started."""
        group = self._new_group(None)
        await group.open()
        try:
            yield [member for member in group.members if member.engine is not None]
        finally:
            await group.close()

    async def clean(self, say: Callable[[str], None], *, volumes: bool = False) -> int:
        """Remove the containers of dead owners; how many there were. volumes: and those that no container uses."""
        group = self._new_group(None)
        await group.open()
        try:
            return await group.reap(say) + (await group.clean_volumes(say) if volumes else 0)
        finally:
            await group.close()

    async def _ask_python(self, engine: Engine, image: str) -> ImagePython:
        """Asked in a sandbox, as all that runs there."""
        config = replace(self.config, engine=engine.url, engines=(), image=image, packages=(), preload=())
        async with DockerBackend(replace(config, pool_size=1, spares=0)) as base:
            asked = await base.run(ASK)
        if asked.status is not RunStatus.OK:
            raise InfraError(f"the Python of {image} did not report its version: {asked.stderr[-500:]}")
        return ImagePython.of(asked.stdout)

    async def _try_packages(self, say: Callable[[str], None]) -> None:
        """See that Python finds them there, and that what is to be preloaded can be."""
        names = [requirement.name for requirement in self.config.requirements]
        async with DockerBackend(replace(self.config, pool_size=1, spares=0)) as backend:
            found = await backend.run(FIND, stdin=" ".join(names))
        if found.status is not RunStatus.OK:
            raise InfraError(f"the image was made, but its Python does not find {names}: {found.stderr[-500:]}")
        say(f"use them with sandbox.options.packages: [{', '.join(map(str, self.config.requirements))}]")

    def _new_choice(self) -> ImageChoice:
        return ImageChoice(self.config.image, self.config.requirements)

    def _new_group(self, image: ImageChoice | None) -> EngineGroup:
        return EngineGroup(self.config, image, self._owner, self._meter, self._settings_of)
