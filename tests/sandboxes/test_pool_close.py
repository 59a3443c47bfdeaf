"""The pool when it closes, and those who give up waiting."""

from __future__ import annotations

import asyncio

import pytest
from pool_fakes import Factory, FakeContainer, call, started

from agentgym.sandbox import SandboxLost, SandboxUnavailable
from agentgym.testing import settle
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.pool import Pool
from agentgym_sandboxes.host.meter import CallMeter


async def test_a_call_that_is_made_again_after_the_close_hears_of_the_close() -> None:
    async with started(pool_size=1, slots=1) as (factory, pool):
        factory.made[0].go.clear()
        first = asyncio.create_task(call(pool))
        await settle()
        closing = asyncio.create_task(pool.close())
        factory.made[0].failures.append(SandboxLost("closed"))
        factory.made[0].go.set()
        with pytest.raises(SandboxUnavailable, match="the sandbox was closed"):
            await first
        await closing
        with pytest.raises(SandboxUnavailable, match="the sandbox was closed"):
            await call(pool)


async def test_a_close_waits_for_a_removal_that_is_under_way() -> None:
    factory = Factory()

    class Slow(FakeContainer):
        async def close(self) -> None:
            await removing.wait()
            await super().close()

    async with started(factory, pool_size=1) as (_, pool):
        removing = asyncio.Event()
        slow = Slow("slow", factory.made[0].on_change, 1000)
        factory.made.append(slow)
        pool._live.append(slow)
        slow.lost = "gone"
        slow.on_change()
        await settle()
        assert pool._to_remove == []  # it is being removed
        closing = asyncio.create_task(pool.close())
        await settle()
        assert not closing.done()
        removing.set()
        await closing
        assert slow.closed


async def test_a_container_that_starts_while_the_pool_closes_is_removed() -> None:
    factory = Factory()
    factory.go.clear()
    pool = Pool(DockerConfig(pool_size=1), factory, 1, CallMeter())
    starting = asyncio.create_task(pool.start())
    await settle()
    await pool.close()
    factory.go.set()
    with pytest.raises(SandboxUnavailable, match="the sandbox was closed"):
        await starting
    assert [container.closed for container in factory.made] == [True]


async def test_one_that_gives_up_waiting_for_a_container_alone_lets_those_after_it_through() -> None:
    async with started(pool_size=1, slots=2) as (factory, pool):
        factory.made[0].go.clear()
        first = asyncio.create_task(call(pool))
        await settle()
        alone = asyncio.create_task(pool._lease(avoid=None, is_suspect=False, num_slots=2))
        await settle()
        after = asyncio.create_task(call(pool))
        await settle()
        assert pool.gauges()["calls_waiting"] == 2
        alone.cancel()
        await settle()
        assert pool.gauges()["calls_waiting"] == 0
        factory.made[0].go.set()
        await asyncio.gather(first, after)
