"""The base of our actors: options, and how to launch one as an actor or as a service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.runtime import Actor, Runtime, current_runtime, endpoint
from agentgym.errors import UserError

if TYPE_CHECKING:
    from agentgym.actors.service import Service
    from agentgym.actors.settings import ServiceSettings

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorOptions:
    """Where an actor runs.

    procs: processes of one replica. hosts: None or 1, this host. mesh_name: names the processes.
    with_gpus: False hides every GPU. gpus: one per process, or all of a replica's for each of its processes
    with share_gpus; empty leaves what this process sees.
    environment_by_rank: more variables, one mapping per process. imports: modules each process imports first.
    """

    procs: int = 1
    hosts: int | None = None
    with_gpus: bool = False
    gpus: tuple[int, ...] = ()
    share_gpus: bool = False
    num_replicas: int = 1
    mesh_name: str | None = None
    threads: int = 1
    environment_by_rank: tuple[Mapping[str, str], ...] = ()
    imports: tuple[str, ...] = ()
    start_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        if min(self.procs, self.num_replicas, self.threads) < 1:
            raise UserError(
                f"procs {self.procs}, num_replicas {self.num_replicas} and threads {self.threads} "
                "must be at least 1"
            )
        if self.hosts not in (None, 1):
            raise UserError(f"hosts is {self.hosts}; only this host can be used so far, give None or 1")
        if self.gpus and len(self.gpus) < self.procs * self.num_replicas:
            raise UserError(
                f"gpus {self.gpus} are too few for {self.num_replicas} replicas of {self.procs} processes; "
                "give one for each process, or none"
            )
        if self.environment_by_rank and len(self.environment_by_rank) != self.procs:
            raise UserError(f"{len(self.environment_by_rank)} environments for {self.procs} processes")

    def environment(self, rank: int) -> dict[str, str]:
        """What the process of this rank finds in its environment."""
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.threads))
        variables["TOKENIZERS_PARALLELISM"] = "false"
        if not self.with_gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        elif self.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = self._gpus_of(rank)
        if self.environment_by_rank:
            variables.update(self.environment_by_rank[rank])
        return variables

    def for_replica(self, index: int) -> ActorOptions:
        """The options of one replica: its share of the GPUs."""
        if not self.gpus:
            return replace(self, num_replicas=1)
        share = len(self.gpus) // self.num_replicas
        return replace(self, num_replicas=1, gpus=self.gpus[index * share : (index + 1) * share])

    def _gpus_of(self, rank: int) -> str:
        if self.share_gpus or self.procs == 1:
            return ",".join(map(str, self.gpus))
        return str(self.gpus[rank])


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """What a health probe answers. version: of the weights; None where there are none."""

    pid: int
    version: int | None = None


class ServiceActor(Actor):  # type: ignore[misc]  # Monarch is untyped
    """An actor that can be probed, started and stopped. Endpoints of subclasses must be `async def`.

    Keep `__init__` trivial and build in `on_start`: what that raises reaches the caller as it is.
    """

    async def on_start(self) -> None:
        """Build what the actor needs, in its own process."""

    async def on_stop(self) -> None:
        """Free it again; must be safe to call when on_start failed."""

    def current_version(self) -> int | None:
        return None

    @endpoint
    async def probe(self) -> ProcessInfo:
        return ProcessInfo(pid=os.getpid(), version=self.current_version())

    @endpoint
    async def start(self) -> None:
        await self.on_start()

    @endpoint
    async def finish(self) -> None:
        await self.on_stop()

    @classmethod
    def options(
        cls,
        *,
        procs: int = 1,
        hosts: int | None = None,
        with_gpus: bool = False,
        gpus: tuple[int, ...] = (),
        num_replicas: int = 1,
        mesh_name: str | None = None,
        threads: int = 1,
    ) -> Launcher[Self]:
        """Say where the actor runs; then `.as_actor(...)` or `.as_service(...)`."""
        return Launcher(
            cls,
            ActorOptions(
                procs=procs,
                hosts=hosts,
                with_gpus=with_gpus,
                gpus=gpus,
                num_replicas=num_replicas,
                mesh_name=mesh_name,
                threads=threads,
            ),
        )

    @classmethod
    async def as_actor(cls, *args: object) -> ProcessGroup:
        return await cls.options().as_actor(*args)

    @classmethod
    async def as_service(cls, *args: object) -> Service:
        return await cls.options().as_service(*args)

    @classmethod
    def launch(cls, name: str, *args: object, options: ActorOptions, runtime: Runtime) -> ProcessGroup:
        """Spawn the processes and the actor, without waiting for them; `await group.start(...)` does."""
        return ProcessGroup(runtime, name, cls, args, options)

    @classmethod
    async def shutdown(cls, launched: ProcessGroup | Service) -> None:
        """Stop what as_actor or as_service returned."""
        if isinstance(launched, ProcessGroup):
            await launched.stop()
        else:
            await launched.close()


A = TypeVar("A", bound=ServiceActor)


@dataclass(frozen=True, slots=True)
class Launcher(Generic[A]):
    """An actor class with options."""

    actor_class: type[A]
    actor_options: ActorOptions
    runtime: Runtime = field(default_factory=current_runtime)

    @property
    def name(self) -> str:
        return self.actor_options.mesh_name or self.actor_class.__name__.lower()

    async def as_actor(self, *args: object) -> ProcessGroup:
        """One group of processes; nobody restarts it."""
        if self.actor_options.num_replicas != 1:
            raise UserError(f"{self.name}: num_replicas is for as_service; an actor has one")
        options = self.actor_options
        group = self.actor_class.launch(self.name, *args, options=options, runtime=self.runtime)
        try:
            await group.start(timeout_s=options.start_timeout_s)
        except BaseException:
            await group.stop()
            raise
        return group

    async def as_service(self, *args: object, settings: ServiceSettings | None = None) -> Service:
        """Replicas behind a router, watched and replaced."""
        from agentgym.actors.service import Service  # it imports this module

        options = self.actor_options

        def launch(index: int, name: str) -> ProcessGroup:
            return self.actor_class.launch(
                name, *args, options=options.for_replica(index), runtime=self.runtime
            )

        service = Service(self.name, launch, num_replicas=options.num_replicas, settings=settings)
        await service.start()
        return service
