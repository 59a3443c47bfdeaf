"""The base class of actors: options, and launching one as an actor or as a service."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from agentgym.actors.by_name import check_arguments
from agentgym.actors.endpoint import LifecycleActor
from agentgym.actors.options import ActorOptions, OptionValues
from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.actors.service import Service
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import UserError, nearest

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

    async def as_actor(self, *args: object, **named: object) -> ProcessGroup[A]:
        """One group of processes, which is not restarted after a death. args, named: of the class's `__init__`."""
        options = self.actor_options
        self._check(args, named)
        if options.num_replicas != 1:
            raise UserError(f"{self.name}: num_replicas is for as_service; an actor has one")
        group = ProcessGroup(self.runtime, self.name, self.actor_class, args, options, named=named)
        try:
            await group.start(timeout_s=options.start_timeout_s)
        except BaseException:
            await group.stop()
            raise
        return group

    async def as_service(self, *args: object, **named: object) -> Service[A]:
        """Replicas behind a router, watched and replaced. args, named: of the class's `__init__`.

        `settings=ServiceSettings(...)` are the service's own.
        """
        options, given = self.actor_options, named.get("settings")
        settings = given if isinstance(given, ServiceSettings) else None
        if settings is not None:
            del named["settings"]
        self._check(args, named)

        def launch(index: int, name: str) -> ProcessGroup[A]:
            return ProcessGroup(self.runtime, name, self.actor_class, args, options.for_replica(index), named=named)

        service = Service(
            self.name, launch, num_replicas=options.num_replicas, settings=settings, actor_class=self.actor_class
        )
        self.runtime.services.append(service.close)
        await service.start()
        return service

    def _check(self, args: tuple[object, ...], named: Mapping[str, object]) -> None:
        made = self.actor_class.__init__
        check_arguments(self.actor_class.__name__, inspect.signature(made), (None, *args), named)


class ServiceActor(LifecycleActor):
    """An actor that runs alone or as the replicas of a service.

    Other processes import the class by its name, so it must be at the top level of an importable module. A method
    `setup` is called where it is started, unless it has an `on_start` of its own.

    The attributes are what `options` leaves out: see ActorOptions.
    """

    procs: ClassVar[int] = 1
    num_replicas: ClassVar[int] = 1
    with_gpus: ClassVar[bool] = False
    hosts: ClassVar[int | str | Sequence[str] | None] = None
    mesh_name: ClassVar[str | None] = None

    def __new__(cls, *args: object, **named: object) -> Self:
        if cls.__hash__ is None:  # a dataclass; Monarch keeps actors in dictionaries
            cls.__hash__ = object.__hash__
        return super().__new__(cls)

    async def on_start(self) -> None:
        if (made := getattr(type(self), "setup", None)) is not None:
            done = getattr(made, "plain_method", made)(self)
            if inspect.isawaitable(done):
                await done

    @classmethod
    def options(cls, **options: Unpack[OptionValues]) -> ActorLaunch[Self]:
        """Choose where the actor runs; then `.as_actor(...)` or `.as_service(...)`."""
        known = OptionValues.__annotations__
        if unknown := [name for name in options if name not in known]:
            raise UserError(f"{cls.__name__}.options has no {unknown[0]!r}.{nearest(unknown[0], known)}")
        own: OptionValues = {
            "procs": cls.procs,
            "num_replicas": cls.num_replicas,
            "with_gpus": cls.with_gpus,
            "hosts": cls.hosts,
            "mesh_name": cls.mesh_name,
        }
        own.update(options)
        return ActorLaunch(cls, ActorOptions(**own))

    @classmethod
    async def as_actor(cls, *args: object, **named: object) -> ProcessGroup[Self]:
        return await cls.options().as_actor(*args, **named)

    @classmethod
    async def as_service(cls, *args: object, **named: object) -> Service[Self]:
        return await cls.options().as_service(*args, **named)

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
