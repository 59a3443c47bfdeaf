"""The pool, with containers that only pretend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, SandboxDirty, SandboxLost, SandboxUnavailable
from agentgym_sandboxes.docker.agent.frames import Frame
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.pool import Pool


class FakeContainer:
    """Answers when told to; counts how many calls it serves at a time."""

    def __init__(self, name: str, on_change: Callable[[], None], max_uses: int) -> None:
        self.name, self.reserved, self.lost = name, 0, None
        self.on_change, self.max_uses = on_change, max_uses
        self.uses = self.most_at_a_time = 0
        self.failures: list[InfraError] = []
        self.go = asyncio.Event()
        self.go.set()
        self.closed = False

    @property
    def usable(self) -> bool:
        return self.lost is None and self.uses < self.max_uses

    async def call(self, op: str, blobs: Sequence[bytes], limits: Limits) -> Frame:
        self.uses += 1
        self.most_at_a_time = max(self.most_at_a_time, self.reserved)
        try:
            await self.go.wait()
            if self.failures:
                self.lost = "lost"
                raise self.failures.pop()
            return Frame({"by": self.name}, [])
        finally:
            self.reserved -= 1
            self.on_change()

    async def ping(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class Factory:
    """Starts fake containers; the starts in `failing` fail."""

    def __init__(self, max_uses: int = 1000, failing: Sequence[int] = ()) -> None:
        self.made: list[FakeContainer] = []
        self.num_starts = 0
        self.max_uses, self.failing = max_uses, failing

    async def __call__(self, on_change: Callable[[], None]) -> FakeContainer:
        self.num_starts += 1
        await asyncio.sleep(0)
        if self.num_starts in self.failing:
            raise InfraError(f"start {self.num_starts} failed")
        container = FakeContainer(f"c{self.num_starts}", on_change, self.max_uses)
        self.made.append(container)
        return container


@asynccontextmanager
async def started(factory: Factory, **options: object) -> AsyncIterator[Pool]:
    config = DockerConfig(**{"pool_size": 2, "slots": 2, "lease_timeout_s": 5.0, **options})  # type: ignore[arg-type]
    pool = Pool(config, factory)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
        assert all(container.closed for container in factory.made)


async def call(pool: Pool) -> str:
    return str((await pool.call("grade", [b""], Limits())).header["by"])


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_no_more_calls_at_a_time_than_slots() -> None:
    factory = Factory()
    async with started(factory) as pool:
        await settle()
        for container in factory.made:
            container.go.clear()
        calls = [asyncio.create_task(call(pool)) for _ in range(10)]
        await settle()
        assert [container.reserved for container in factory.made] == [2, 2]
        assert pool.num_waiting == 6
        for container in factory.made:
            container.go.set()
        await asyncio.gather(*calls)
        assert [container.most_at_a_time for container in factory.made] == [2, 2]
        assert [container.reserved for container in factory.made] == [0, 0]


async def test_a_lease_has_a_deadline_and_says_what_to_set() -> None:
    factory = Factory()
    async with started(factory, pool_size=1, slots=1, lease_timeout_s=0.05) as pool:
        factory.made[0].go.clear()
        first = asyncio.create_task(call(pool))
        await settle()
        with pytest.raises(
            SandboxUnavailable, match=r"no sandbox slot came free within 0.05 s: 1 of 1 .*pool_size"
        ):
            await call(pool)
        factory.made[0].go.set()
        assert await first == "c1"
        assert await call(pool) == "c1"  # the one that gave up holds no slot


async def test_those_who_wait_are_served_in_turn() -> None:
    factory = Factory()
    order: list[int] = []

    async def one(number: int) -> None:
        await call(pool)
        order.append(number)

    async with started(factory, pool_size=1, slots=1) as pool:
        await asyncio.gather(*(one(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]


async def test_a_caller_that_is_cancelled_while_waiting_takes_no_slot() -> None:
    factory = Factory()
    async with started(factory, pool_size=1, slots=1) as pool:
        factory.made[0].go.clear()
        first, second, third = (asyncio.create_task(call(pool)) for _ in range(3))
        await settle()
        second.cancel()
        factory.made[0].go.set()
        assert await first == "c1"
        assert await third == "c1"
        assert second.cancelled()
        assert factory.made[0].reserved == 0


@pytest.mark.parametrize("kind", [SandboxLost, SandboxDirty])
async def test_a_call_is_made_again_once_on_another_container(kind: type[InfraError]) -> None:
    factory = Factory()
    async with started(factory) as pool:
        await settle()
        factory.made[0].failures.append(kind("gone"))
        assert await call(pool) == "c2"
        assert pool.counts["retries"] == 1
        await settle()
        assert pool.num_live == 2 and len(factory.made) == 3
        assert factory.made[0].closed


async def test_a_call_that_fails_twice_is_the_callers_to_know() -> None:
    factory = Factory()
    async with started(factory) as pool:
        await settle()
        for container in factory.made:
            container.failures.append(SandboxLost("gone"))
        with pytest.raises(SandboxLost):
            await call(pool)
        assert pool.counts["lost"] == 2


async def test_a_used_up_container_is_replaced_when_its_calls_are_done() -> None:
    factory = Factory(max_uses=3)
    async with started(factory, pool_size=1, slots=2) as pool:
        names = [await call(pool) for _ in range(9)]
        await settle()
        assert names == ["c1"] * 3 + ["c2"] * 3 + ["c3"] * 3
        assert [container.closed for container in factory.made] == [True, True, True, False]


async def test_starts_that_fail_are_tried_again() -> None:
    factory = Factory(failing=[2])
    async with started(factory) as pool:
        async with asyncio.timeout(5):
            while pool.num_live < 2:
                await asyncio.sleep(0.05)
        assert pool.counts["start_failures"] == 1


async def test_a_first_start_that_fails_is_told_at_once() -> None:
    with pytest.raises(InfraError, match="start 1 failed"):
        await Pool(DockerConfig(), Factory(failing=[1])).start()


async def test_closing_refuses_those_who_wait() -> None:
    factory = Factory()
    async with started(factory, pool_size=1, slots=1) as pool:
        factory.made[0].go.clear()
        first, second = asyncio.create_task(call(pool)), asyncio.create_task(call(pool))
        await settle()
        await pool.close()
        with pytest.raises(SandboxUnavailable, match="closed"):
            await second
        factory.made[0].go.set()
        await first
