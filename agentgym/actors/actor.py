"""The base class of actors: options, and launching one as an actor or as a service."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar, Unpack

from agentgym.actors.endpoint import LifecycleActor
from agentgym.actors.options import ActorOptions, OptionValues
from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.actors.service import Service
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import UserError

A = TypeVar("A", bound=LifecycleActor)


@dataclass(frozen=True, slots=True)
class ActorLaunch(Generic[A]):
    """An actor class with options."""

    actor_class: type[A]
    actor_options: ActorOptions
    runtime: Runtime = field(default_factory=current_runtime)

    @property
    def name(self) -> str:
        return self.actor_options.mesh_name or self.actor_class.__name__.lower()

    async def as_actor(self, *args: object) -> ProcessGroup[A]:
        """One group of processes, which is not restarted after a death."""
        options = self.actor_options
        if options.num_replicas != 1:
            raise UserError(f"{self.name}: num_replicas is for as_service; an actor has one")
        group = ProcessGroup(self.runtime, self.name, self.actor_class, args, options)
        try:
            await group.start(timeout_s=options.start_timeout_s)
        except BaseException:
            await group.stop()
            raise
        return group

    async def as_service(self, *args: object, settings: ServiceSettings | None = None) -> Service[A]:
        """Replicas behind a router, watched and replaced."""
        options = self.actor_options

        def launch(index: int, name: str) -> ProcessGroup[A]:
            return ProcessGroup(self.runtime, name, self.actor_class, args, options.for_replica(index))

        service = Service(self.name, launch, num_replicas=options.num_replicas, settings=settings)
        await service.start()
        return service


class ServiceActor(LifecycleActor):
    """An actor that runs alone or as the replicas of a service. All of its endpoints must be `async def`.

    Other processes import the class by its name, so it must be at the top level of an importable module.
    """

    @classmethod
    def options(cls, **options: Unpack[OptionValues]) -> ActorLaunch[Self]:
        """Choose where the actor runs; then `.as_actor(...)` or `.as_service(...)`."""
        return ActorLaunch(cls, ActorOptions(**options))

    @classmethod
    async def as_actor(cls, *args: object) -> ProcessGroup[Self]:
        return await cls.options().as_actor(*args)

    @classmethod
    async def as_service(cls, *args: object) -> Service[Self]:
        return await cls.options().as_service(*args)

    @classmethod
    def launch(cls, name: str, *args: object, options: ActorOptions, runtime: Runtime) -> ProcessGroup[Self]:
        """Spawn the processes and the actor without waiting for them; `await group.start(...)` waits."""
        return ProcessGroup(runtime, name, cls, args, options)

    @classmethod
    async def shutdown(cls, launched: ProcessGroup[Any] | Service[Any]) -> None:
        """Stop what as_actor or as_service returned."""
        if isinstance(launched, ProcessGroup):
            await launched.stop()
        else:
            await launched.close()
