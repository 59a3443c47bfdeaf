"""Methods of services as a loop calls them: one answers, or all do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[P, R]):
    """`await call(...)` asks one replica, as `route` and `call_one` do; `fanout` and `call_all` ask every one.

    every: None where there is only one.
    """

    one: Callable[P, Awaitable[R]]
    every: Callable[P, Awaitable[list[R]]] | None = None

    async def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        return await self.one(*args, **options)

    async def route(self, *args: P.args, **options: P.kwargs) -> R:
        """The replica with the fewest requests answers; another one if it dies."""
        return await self.one(*args, **options)

    async def call_one(self, *args: P.args, **options: P.kwargs) -> R:
        """The name that an actor without replicas has for it."""
        return await self.one(*args, **options)

    async def fanout(self, *args: P.args, **options: P.kwargs) -> list[R]:
        """The answers of all replicas."""
        return [await self.one(*args, **options)] if self.every is None else await self.every(*args, **options)

    async def call_all(self, *args: P.args, **options: P.kwargs) -> list[R]:
        return await self.fanout(*args, **options)
