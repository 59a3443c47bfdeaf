"""One engine of a group: its connection, its limits, how it does, and what runs on it."""

from __future__ import annotations

import asyncio

from agentgym.errors import InfraError
from agentgym.sandbox import SandboxDiskFull, SandboxUnavailable
from agentgym_sandboxes.docker.breaker import Breaker, Circuit, StartLimit
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.facts import EngineFacts, check_facts, room_text
from agentgym_sandboxes.docker.failures import EngineDiskFull
from agentgym_sandboxes.docker.image import ImageChoice
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.image_store import GB, ImageStore
from agentgym_sandboxes.docker.machine import Machine, Request
from agentgym_sandboxes.docker.room import Room
from agentgym_sandboxes.docker.task_images import TaskImages
from agentgym_sandboxes.docker.tree import provide_tree
from agentgym_sandboxes.docker.volumes import are_kept
from agentgym_sandboxes.host.meter import CallMeter

STARTS_PER_CORE = 2  # in flight: more only wait for each other
REACH_BACKOFF_S = 2.0


class Member:
    """An engine that is reached, or will be.

    reach: whether it answers; pings are its probes. starts: whether containers start on it.
    """

    def __init__(self, url: str | None, config: DockerConfig) -> None:
        self.url = url or "the usual places"
        self.engine: Engine | None = None
        self.facts: EngineFacts | None = None
        self.image_id = ""
        self.images: TaskImages | None = None
        self.store: ImageStore | None = None
        self.room: Room | None = None
        self._machines: dict[Request, Machine] = {}
        self._tree: asyncio.Task[str] | None = None
        self.reach = Breaker(config.engine_failures, REACH_BACKOFF_S)
        self.starts = Breaker(config.engine_failures)
        self.num_starting = 0
        self.in_flight = asyncio.Semaphore(1)
        self.limit = StartLimit(config.starts_per_s, 1)
        self._asked_url = url
        self._config = config
        self._containers: list[Container] = []

    async def connect(self, image: ImageChoice | None, meter: CallMeter) -> None:
        """Reach it, and see that it can hold our containers. Raises SandboxUnavailable, UserError.

        image: which each of them runs; None when no container is to be started.
        """
        config = self._config
        engine = await Engine.connect(
            self._asked_url, config.engine_timeout_s, tls=config.tls, ssh_config=config.ssh_config
        )
        try:
            engine.on_latency = meter.engine.add
            facts = await engine.facts()
            if image is not None:
                check_facts(facts, engine.url, config.runtime, config.allow_missing_limits)
                self.image_id = await image.on(engine)
        except BaseException as error:
            await engine.close()
            if isinstance(error, InfraError) and not isinstance(error, SandboxUnavailable):
                raise SandboxUnavailable(str(error)) from error
            raise
        self.engine, self.facts, self.url = engine, facts, engine.url
        budget = None if config.images_gb is None else int(config.images_gb * GB)
        cpus, memory = config.tasks_cpus or 8 * facts.cpus, config.tasks_memory_mib or facts.memory_mib * 9 // 10
        self.room = Room(memory, cpus, facts.cpus)
        self.store = ImageStore(engine, budget, config.images_ahead + 2)
        self.images = TaskImages(engine, facts.identity, facts.architecture, self.store)
        burst = STARTS_PER_CORE * facts.cpus
        self.in_flight, self.limit = asyncio.Semaphore(burst), StartLimit(config.starts_per_s, burst)

    async def machine(self, request: Request, owner: str) -> Machine:
        """What a session of an image that a task named needs here; a name means the same image as long as we run.

        Raises ImageUnusable, InfraError.
        """
        engine, images = self.engine, self.images
        assert engine is not None and images is not None
        await self._forget_lost_tree(engine)
        if request in self._machines:
            if self.store is not None:
                await self.store.touch(self._machines[request].image.image_id)
            return self._machines[request]
        image = await engine.image(request.image) if request.image.startswith("sha256:") else None
        try:
            image = (image and images.checked(image, request.name)) or await images.provide(
                request.what, request.build_timeout_s
            )
        except EngineDiskFull as error:
            raise self.typed(error) from error
        if self._tree is None:
            self._tree = asyncio.create_task(provide_tree(engine, self.image_id, owner))
            self._tree.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, if nobody waits
        tree = await asyncio.shield(self._tree)
        return self._machines.setdefault(request, self._machine(request, image, tree))

    def _machine(self, request: Request, image: Image, tree: str) -> Machine:
        cpus = self.facts.cpus if self.facts is not None else 1
        return Machine(request=request, image=image, tree=tree, url=self.url, most_cpus=cpus)

    def forget(self, request: Request) -> None:
        """Its image may be gone."""
        self._machines.pop(request, None)

    async def _forget_lost_tree(self, engine: Engine) -> None:
        """What could not be filled, or was removed since."""
        if (tree := self._tree) is None or not tree.done():
            return
        is_there = not tree.cancelled() and not tree.exception() and await are_kept(engine, {tree.result()})
        if not is_there and self._tree is tree:
            self._tree = None
            self._machines.clear()

    @property
    def is_ready(self) -> bool:
        return self.engine is not None and self.reach.circuit == Circuit.CLOSED and self.starts.admits

    @property
    def is_open(self) -> bool:
        return self.engine is None or self.reach.circuit != Circuit.CLOSED or self.starts.circuit != Circuit.CLOSED

    @property
    def load(self) -> tuple[bool, float]:
        """Sort key: engines that failed recently last, then containers per core."""
        self._containers = [container for container in self._containers if container.lost is None]
        cores = self.facts.cpus if self.facts else 1
        suspect = self.reach.is_suspect or self.starts.is_suspect
        return suspect, (len(self._containers) + self.num_starting) / cores

    @property
    def trouble(self) -> Exception | None:
        return self.reach.last_error or self.starts.last_error

    def hold(self, container: Container) -> None:
        self._containers.append(container)

    def typed(self, error: InfraError) -> InfraError:
        """A failed start, with what a person can do about it."""
        if isinstance(error, EngineDiskFull) and self.facts is not None and self.engine is not None:
            room = room_text(self.facts.data_root, self.engine.is_local)
            return SandboxDiskFull(
                f"the Docker engine at {self.url} has no room for a container in {room}. Free some there: "
                f"`docker system df` shows what takes it. It said: {error}"
            )
        if self.facts is not None and self.facts.remapped and "Invalid argument" in str(error):
            return InfraError(
                f"{error}. The engine maps too few user ids: give its user 65536 in /etc/subuid and /etc/subgid"
            )
        return error
