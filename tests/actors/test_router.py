"""Who gets the next request, and who waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from counting import Counting

from agentgym.actors.caller import Caller
from agentgym.actors.remote import RemoteService, Route, Routes
from agentgym.actors.router import Router
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError


@dataclass(eq=False)
class One:
    """A replica with two slots."""

    name: str
    up: bool = True
    load: int = 0

    @property
    def has_room(self) -> bool:
        return self.up and self.load < 2


def of(*ones: One) -> Router[One]:
    router: Router[One] = Router()
    for one in ones:
        router.changed(one)
    return router


async def line(router: Router[One], count: int) -> list[asyncio.Task[One]]:
    waiting = [asyncio.create_task(router.take()) for _ in range(count)]
    while router.num_waiting < count:
        await asyncio.sleep(0)
    return waiting


def done(tasks: list[asyncio.Task[Any]]) -> list[bool]:
    return [task.done() for task in tasks]


async def test_the_least_loaded_gets_it_equals_take_turns_and_a_session_stays() -> None:
    a, b = One("a"), One("b")
    router = of(a, b)
    for expected in (a, b, a, b):
        assert await router.take() is expected
        router.give_back(expected)
    assert await router.take() is a
    assert await router.take() is b, "it has fewer"
    router.give_back(b)
    assert await router.take(a) is a, "a session stays, though the other is idle"
    assert await router.take(a) is b, "but does not wait for its replica"
    assert await router.take() is b


async def test_a_free_slot_wakes_the_first_that_waits_and_a_new_replica_as_many_as_it_takes() -> None:
    a, b = One("a", load=2), One("b", up=False)
    router = of(a, b)
    waiting = await line(router, 5)
    late = asyncio.create_task(router.take())
    router.give_back(a)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done([*waiting, late]) == [True, False, False, False, False, False] and a.load == 2
    b.up = True
    router.changed(b)
    assert [await task for task in waiting[:3]] == [a, b, b] and router.num_waiting == 3
    router.fail(InfraError("closed"))
    for task in [*waiting[3:], late, asyncio.create_task(router.take())]:
        with pytest.raises(InfraError, match="closed"):
            await task


async def test_the_slot_of_one_that_stopped_waiting_goes_to_the_next() -> None:
    a = One("a", load=2)
    router = of(a)
    left, handed, last = await line(router, 3)
    left.cancel()  # it has not run since, and is in the line
    router.give_back(a)
    handed.cancel()  # it has its slot, and has not run since
    await asyncio.wait({handed})
    assert await last is a and a.load == 2 and not router.num_waiting


async def test_who_is_handed_a_replica_that_dies_at_once_waits_for_another() -> None:
    a, b = One("a", load=2), One("b", up=False)
    router = of(a, b)
    (waiting,) = await line(router, 1)
    router.give_back(a)
    a.up = False
    router.changed(a)
    while not router.num_waiting:
        await asyncio.sleep(0)
    b.up = True
    router.changed(b)
    assert await waiting is b and (a.load, b.load) == (1, 1)


async def test_processes_that_route_for_themselves_begin_with_different_replicas() -> None:
    routes = Routes(tuple(Route(f"s{number}", object()) for number in range(20)))
    begun = []
    for _ in range(2):
        service = RemoteService("s", Counting, Caller(), max_replicas=20, settings=ServiceSettings())
        service.follow(routes)
        begun.append([(await service._router.take()).group.name for _ in range(20)])
    assert begun[0] != begun[1] and sorted(begun[0]) == sorted(begun[1])
