"""The pool, with containers that only pretend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from pool_fakes import Factory, FakeContainer, Fate, Seen, call, counted, started, until

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import Limits, SandboxDirty, SandboxDiskFull, SandboxLost, SandboxUnavailable
from agentgym.testing import fast, settle
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.docker.failures import ImageGone
from agentgym_sandboxes.host.answers import Crowded, NotAlone


async def test_no_more_calls_at_a_time_than_slots() -> None:
    async with started() as (factory, pool):
        await settle()
        for container in factory.made:
            container.go.clear()
        calls = [asyncio.create_task(call(pool)) for _ in range(10)]
        await settle()
        assert [container.reserved for container in factory.made] == [2, 2]
        assert pool.gauges() == {
            "slots_used": 4,
            "slots": 4,
            "calls_waiting": 6,
            "containers_live": 2,
            "containers_spare": 0,
        }
        for container in factory.made:
            container.go.set()
        await asyncio.gather(*calls)
        assert [container.most_at_a_time for container in factory.made] == [2, 2]
        assert [container.reserved for container in factory.made] == [0, 0]


async def test_a_lease_has_a_deadline_and_says_what_to_set() -> None:
    async with started(pool_size=1, slots=1, lease_timeout_s=0.05) as (factory, pool):
        factory.made[0].go.clear()
        first = asyncio.create_task(call(pool))
        await settle()
        with pytest.raises(SandboxUnavailable, match=r"no sandbox slot came free within 0.05 s: 1 of 1 .*pool_size"):
            await call(pool)
        found = pool._meter.metrics()
        assert (found["sandbox/calls_failed_total"], found["sandbox/calls_total"]) == (1, 0)
        assert found["sandbox/queue_p95_s"] == 0.05
        factory.made[0].go.set()
        assert await first == "c1"
        assert await call(pool) == "c1"  # the one that gave up holds no slot


class Narrow(FakeContainer):
    """Has room for one large call: beside others it is crowded out."""

    running = 0

    async def call(self, op: str, blobs: Sequence[bytes], limits: Limits, *, alone: bool) -> Frame:
        self.running += 1
        try:
            if blobs[0] == b"large" and self.running > 1:
                raise Crowded("crowded")
            await asyncio.sleep(0.03)
            return Frame({"by": self.name}, [])
        finally:
            self.running -= 1
            self.reserved -= 1
            self.on_change()


async def test_a_call_that_is_crowded_again_and_again_gets_a_container_alone() -> None:
    """Programs of one grade run beside each other: they must not be able to crowd each other out for good."""
    async with started(Factory(kind=Narrow), pool_size=1, slots=3) as (factory, pool):

        async def made(what: bytes) -> None:
            await pool.call("grade", [what], Limits(), lambda frame: Seen(str(frame.header["by"])))

        async def hog() -> None:
            while True:
                await made(b"small")

        hogs = [asyncio.create_task(hog())]
        await asyncio.sleep(0.015)
        hogs.append(asyncio.create_task(hog()))  # so that there is always one
        async with asyncio.timeout(60):
            await made(b"large")
        for task in hogs:
            task.cancel()
        await asyncio.gather(*hogs, return_exceptions=True)
        assert factory.made[0].reserved == 0


async def test_a_call_whose_tests_are_never_alone_ends() -> None:
    class Shared(FakeContainer):
        async def call(self, op: str, blobs: Sequence[bytes], limits: Limits, *, alone: bool) -> Frame:
            await super().call(op, blobs, limits, alone=alone)
            raise NotAlone("its tests use what calls share")

    async with started(Factory(kind=Shared), pool_size=1, slots=2) as (factory, pool):
        with pytest.raises(NotAlone):
            await call(pool)
        assert (factory.made[0].uses, factory.made[0].most_at_a_time, factory.made[0].reserved) == (3, 2, 0)


async def test_one_that_waits_for_a_container_alone_keeps_no_other_from_those_after_it() -> None:
    async with started(pool_size=2, slots=2) as (_, pool):
        await until(lambda: len(pool._live) == 2)
        one, other = [await pool._lease(avoid=None, is_suspect=False) for _ in range(2)]
        alone = asyncio.create_task(pool._lease(avoid=None, is_suspect=False, num_slots=2))
        await settle()
        async with asyncio.timeout(10):
            after = await pool._lease(avoid=None, is_suspect=False)
        kept = one if after is other else other
        assert not alone.done() and kept.reserved == 1
        kept.reserved = 0
        pool._on_change()
        assert await alone is kept
        one.reserved = other.reserved = 0


async def test_those_who_wait_are_served_in_turn() -> None:
    factory = Factory()
    order: list[int] = []

    async def one(number: int) -> None:
        await call(pool)
        order.append(number)

    async with started(factory, pool_size=1, slots=1) as (_, pool):
        await asyncio.gather(*(one(number) for number in range(5)))
    assert order == [0, 1, 2, 3, 4]


@fast
async def test_a_wait_that_is_cut_off_says_what_it_waited_for() -> None:
    gone = InfraError("the engine is gone")
    async with started(Factory(failing=dict.fromkeys(range(2, 1000), gone)), pool_size=1, slots=1) as (factory, pool):
        factory.made[0].failures.append(SandboxLost("its stream ended"))
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(10):
                await call(pool)
        assert caught.value.__cause__ is not None
        assert isinstance(caught.value.__cause__.__cause__, SandboxUnavailable)
        assert str(caught.value.__cause__.__cause__).endswith("No more could be started: the engine is gone")


@pytest.mark.parametrize(("num_failing", "starts"), [(2, True), (3, False)])
@fast
async def test_the_first_container_is_tried_again_as_later_ones_are(num_failing: int, starts: bool) -> None:
    factory = Factory(failing=dict.fromkeys(range(1, num_failing + 1), SandboxLost("no process")))
    with contextlib.nullcontext() if starts else pytest.raises(SandboxLost, match="no process"):
        async with started(factory, pool_size=1):
            assert len(factory.made) == 1


async def test_a_caller_that_is_cancelled_while_waiting_takes_no_slot() -> None:
    async with started(pool_size=1, slots=1) as (factory, pool):
        factory.made[0].go.clear()
        first, second, third = (asyncio.create_task(call(pool)) for _ in range(3))
        await settle()
        second.cancel()
        factory.made[0].go.set()
        assert await first == "c1"
        assert await third == "c1"
        assert second.cancelled()
        assert factory.made[0].reserved == 0


@pytest.mark.parametrize(("kind", "cause"), [(SandboxLost, "lost"), (SandboxDirty, "dirty")])
async def test_a_call_is_made_again_once_on_another_container(kind: type[InfraError], cause: str) -> None:
    async with started() as (factory, pool):
        await settle()
        factory.made[0].failures.append(kind("gone"))
        assert await call(pool) == "c2"
        assert counted(pool, "retries_total") == 1
        await settle()
        assert pool.gauges()["containers_live"] == 2 and len(factory.made) == 3
        assert factory.made[0].closed
        assert counted(pool, f"replaced_{cause}_total") == 1
        assert counted(pool, "leaks_total") == (cause == "dirty")
        assert pool._meter.metrics()["sandbox/calls_total"] == 1  # one answer, however often it was tried


async def test_a_call_that_fails_twice_is_the_callers_to_know() -> None:
    async with started() as (factory, pool):
        await settle()
        for container in factory.made:
            container.failures.append(SandboxLost("gone"))
        with pytest.raises(SandboxLost):
            await call(pool)
        assert counted(pool, "replaced_lost_total") == 2
        assert pool._meter.metrics()["sandbox/calls_total"] == 0


async def test_containers_that_went_down_with_their_engine_are_no_fault_of_the_call() -> None:
    async with started(fate=Fate("c1", "c2")) as (factory, pool):
        await settle()
        for container in factory.made:
            container.failures.append(SandboxLost("gone"))
        assert await call(pool) == "c3"


async def test_a_call_is_not_made_again_where_it_failed_unless_there_is_no_other() -> None:
    class Refusing(FakeContainer):
        async def call(self, op: str, blobs: Sequence[bytes], limits: Limits, *, alone: bool) -> Frame:
            await super().call(op, blobs, limits, alone=alone)
            raise SandboxLost("no process could be started in it")

    async with started() as (factory, pool):
        await settle()
        pool._live[0] = Refusing("full", factory.made[0].on_change, 1000)
        await factory.made[0].close()
        assert await call(pool) == "c2"


async def test_a_worn_container_serves_until_another_is_ready() -> None:
    async with started(Factory(max_uses=3), pool_size=1) as (factory, pool):
        factory.go.clear()
        assert [await call(pool) for _ in range(5)] == ["c1"] * 5
        await settle()
        assert factory.num_starts == 2 and not factory.made[0].closed
        assert pool.gauges()["slots"] == 2
        factory.go.set()
        await settle()
        assert await call(pool) == "c2"
        assert factory.made[0].closed and counted(pool, "replaced_uses_total") == 1


async def test_a_spare_takes_over_at_once() -> None:
    async with started(Factory(max_uses=3), pool_size=1, spares=1) as (factory, pool):
        await settle()
        assert pool.gauges()["containers_spare"] == 1
        names = []
        for _ in range(9):
            names.append(await call(pool))
            await settle()
        assert names == ["c1"] * 3 + ["c2"] * 3 + ["c3"] * 3
        factory.go.clear()  # nothing starts any more
        factory.made[3].failures.append(SandboxLost("gone"))
        assert await call(pool) == "c5"


async def test_the_number_of_slots_never_drops_while_containers_wear_out() -> None:
    factory = Factory(max_uses=2)
    fewest = 99.0
    async with started(factory, pool_size=3) as (_, pool):
        await settle()
        for _ in range(40):
            await asyncio.gather(*(call(pool) for _ in range(6)))
            fewest = min(fewest, pool.gauges()["slots"])
    assert fewest == 6
    assert len(factory.made) > 20


@pytest.mark.parametrize(("size", "spares"), [(1, 1), (10, 1), (11, 2), (40, 4)])
async def test_a_tenth_of_the_pool_is_spare_and_at_least_one(size: int, spares: int) -> None:
    async with started(pool_size=size, spares=None) as (factory, pool):
        await settle()
        assert pool.gauges()["containers_spare"] == spares
        assert len(factory.made) == size + spares


async def test_starts_that_fail_are_tried_again() -> None:
    async with started(Factory(failing={2: InfraError("start 2 failed")})) as (factory, pool):
        await until(lambda: pool.gauges()["containers_live"] == 2)
        assert factory.num_starts == 3


@pytest.mark.parametrize("kind", [SandboxDiskFull, SandboxUnavailable])
@fast
async def test_a_lease_that_fails_for_want_of_containers_says_why_none_start(kind: type[InfraError]) -> None:
    async with started(
        Factory(failing=dict.fromkeys(range(2, 100), kind("the disk of node-7 is full"))),
        pool_size=1,
        lease_timeout_s=0.3,
    ) as (factory, pool):
        factory.made[0].failures.append(SandboxLost("gone"))
        with pytest.raises(kind, match=r"0 of 1 containers are up.*the disk of node-7 is full") as caught:
            await call(pool)
        assert type(caught.value) is kind


async def test_closing_refuses_those_who_wait() -> None:
    async with started(pool_size=1, slots=1) as (factory, pool):
        factory.made[0].go.clear()
        first, second = asyncio.create_task(call(pool)), asyncio.create_task(call(pool))
        await settle()
        await pool.close()
        with pytest.raises(SandboxUnavailable, match="closed"):
            await second
        factory.made[0].go.set()
        await first


async def test_a_pool_of_another_event_loop_is_refused() -> None:
    async with started() as (_, pool):
        with pytest.raises(UserError, match="in another event loop"):
            await asyncio.to_thread(asyncio.run, call(pool))


async def test_a_call_that_ends_containers_takes_no_other_call_along_twice() -> None:
    """All that ran beside it are made again, but never beside each other: none knows which of them did it."""

    class Fragile(FakeContainer):
        async def call(self, op: str, blobs: Sequence[bytes], limits: Limits, *, alone: bool) -> Frame:
            self.ends_at_once = blobs[0] == b"culprit" or getattr(self, "ends_at_once", False)
            try:
                await asyncio.sleep(0.02)  # beside the others
                if self.ends_at_once:
                    self.lost = "its agent was killed"
                    raise SandboxLost(self.lost)
                return Frame({"by": self.name}, [])
            finally:
                self.reserved -= 1
                self.on_change()

    async with started(Factory(kind=Fragile), pool_size=2, slots=4, spares=1) as (_, pool):
        await settle()
        names = [b"culprit", b"a", b"b", b"c", b"d", b"e", b"f", b"g"]
        calls = [pool.call("grade", [name], Limits(), lambda frame: Seen(str(frame.header["by"]))) for name in names]
        culprit, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(culprit, SandboxLost)
        assert all(isinstance(other, Seen) for other in others), others


@fast
async def test_calls_are_refused_at_once_while_the_image_is_gone_and_served_when_it_is_back() -> None:
    gone = ImageGone("has no image x. `agentgym sandbox build` makes it, once.")
    factory = Factory(failing={2: gone})
    async with started(factory, pool_size=1, slots=1, lease_timeout_s=600.0) as (_, pool), asyncio.timeout(60):
        factory.made[0].lost = "its engine was pruned"
        factory.made[0].on_change()
        with pytest.raises(SandboxUnavailable, match="agentgym sandbox build"):
            await call(pool)
        assert await call(pool) == "c3"
