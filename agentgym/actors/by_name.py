"""Endpoints called by their names: `await service.method.route(...)`, with keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym.actors.endpoint import LifecycleActor, own_endpoints
from agentgym.actors.replies import Keywords
from agentgym.errors import UserError, nearest

Ask = Callable[..., Awaitable[Any]]
"""Takes an endpoint, as `Class.method`, and its arguments."""


class NoEndpoint(UserError, AttributeError):
    """An attribute that is neither one of the object's own nor an endpoint of its actor."""


@dataclass(frozen=True, slots=True)
class NamedEndpoint:
    """An endpoint of what was launched. What it is called with is checked before it is sent.

    one: asks one process or replica. every: asks all of them; the answers come as a list.
    """

    method: Any
    one: Ask
    every: Ask

    def __call__(self, *args: Any, **options: Any) -> None:
        name = self.method.plain_method.__name__
        raise UserError(f"{name} is not called itself: {name}.route(...) asks one replica, {name}.fanout(...) all")

    async def route(self, *args: Any, **options: Any) -> Any:
        """The answer of one replica, the one with the fewest requests, or of an actor's only process."""
        return await self.one(self.method, *self._checked(args, options))

    async def call_one(self, *args: Any, **options: Any) -> Any:
        return await self.route(*args, **options)

    async def choose(self, *args: Any, **options: Any) -> Any:
        return await self.route(*args, **options)

    async def call(self, *args: Any, **options: Any) -> list[Any]:
        """The answers of all processes of an actor, by rank, or of all replicas."""
        found: list[Any] = await self.every(self.method, *self._checked(args, options))
        return found

    async def fanout(self, *args: Any, **options: Any) -> list[Any]:
        return await self.call(*args, **options)

    def _checked(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, ...]:
        plain = self.method.plain_method
        check_arguments(plain.__qualname__, inspect.signature(plain), (None, *args), options)
        return (*args, Keywords(options)) if options else args


def named_endpoint(actor_class: type[LifecycleActor] | None, name: str, one: Ask, every: Ask) -> NamedEndpoint:
    """Raises NoEndpoint, an AttributeError, for a name that the class has no endpoint of."""
    if actor_class is None or name.startswith("_"):
        raise AttributeError(name)
    known = own_endpoints(actor_class)
    if name not in known:
        raise NoEndpoint(f"{actor_class.__name__} has no endpoint {name!r}.{nearest(name, known)}")
    return NamedEndpoint(getattr(actor_class, name), one, every)


def check_arguments(what: str, signature: inspect.Signature, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raises UserError, here where the user calls it, for arguments that the function in another process refuses."""
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        raise UserError(f"{what}{signature} can't be called like this: {error}") from None
