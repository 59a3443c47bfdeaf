"""A service of another process, whose replicas are called from this one without that process in between."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, cast

from agentgym.actors.caller import Caller
from agentgym.actors.endpoint import Endpoint, LifecycleActor, endpoint_name
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import ProcessDied, ProcessGroup
from agentgym.actors.service import Service
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError

if TYPE_CHECKING:
    from agentgym.actors.runtime import Runtime

A = TypeVar("A", bound=LifecycleActor)
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class Route:
    """A replica that answers. group: the name of its processes. actor: Monarch's reference, which can be pickled."""

    group: str
    actor: Any


@dataclass(frozen=True, slots=True)
class Routes:
    """The replicas of a service at one moment; None for one that is not up. failure: of the whole service."""

    replicas: tuple[Route | None, ...] = ()
    failure: str = ""

    @property
    def names(self) -> tuple[object, ...]:
        """By which routes differ: Monarch's references do not compare."""
        return (self.failure, *(route and route.group for route in self.replicas))

    @classmethod
    def of(cls, service: Service[Any]) -> Routes:
        found = (
            Route(one.group.name, one.group.actor) if one.up and not one.group.dead.done() else None
            for one in service.replicas
        )
        return cls(tuple(found), service.failure)


class RemoteGroup(ProcessGroup[A]):
    """Processes that another process has started, and whose deaths it reports with `give_up`."""

    def __init__(self, caller: Caller, route: Route, actor_class: type[A]) -> None:
        super().__init__(cast("Runtime", caller), route.group, actor_class, (), ActorOptions())  # it starts nothing
        self._ranks = [route.actor]

    def broadcast(self, method: Endpoint[A, *Ts, None], *args: *Ts) -> None:
        if not self.dead.done():
            self._runtime.flush()
            with contextlib.suppress(RuntimeError):
                getattr(self.actor, endpoint_name(self._actor_class, method)).broadcast(*args)

    def _died(self, error: BaseException) -> ProcessDied:
        self.give_up(" ".join(str(error).split()))
        return ProcessDied(f"{self.name} is dead: {self.dead.result()}")


class RemoteService(Service[A]):
    """Routes as the service does, among the replicas that `follow` has said are up."""

    def __init__(
        self, name: str, actor_class: type[A], caller: Caller, *, max_replicas: int, settings: ServiceSettings
    ) -> None:
        super().__init__(name, _launch, num_replicas=max_replicas, settings=settings, actor_class=actor_class)
        self._replicas_class = actor_class
        self._caller = caller

    def follow(self, routes: Routes) -> None:
        """From now on these are up. Calls at the others fail there and are made again."""
        if routes.failure and not self.failed:
            self._fail(InfraError(routes.failure))
        pairs = list(zip(self.replicas, routes.replicas, strict=True))
        random.Random().shuffle(pairs)  # equals take turns in this order: else all processes would begin with the same
        for replica, route in pairs:
            known: ProcessGroup[A] | None = getattr(replica, "group", None)
            if route is not None and known is not None and route.group == known.name:
                continue
            if known is not None:
                known.give_up("the controller reports that it is down")
                self._caller.forget([known.actor])
            if route is not None:
                replica.group = RemoteGroup(self._caller, route, self._replicas_class)
            replica.up = route is not None
            self._notify(replica)


def _launch(index: int, name: str) -> NoReturn:
    raise AssertionError(f"{name} is started by another process")
