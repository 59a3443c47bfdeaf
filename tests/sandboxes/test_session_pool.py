"""Leases of sessions, with containers that only pretend; then one real container that dies."""

from __future__ import annotations

import asyncio
import contextlib
import math
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from pool_fakes import Factory, FakeSession, until

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import Limits, SandboxBackend, SandboxDirty, SandboxLost, SandboxUnavailable
from agentgym.testing import fast, settle
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.machine import Machine, Request
from agentgym_sandboxes.docker.session_pool import Others, SessionPool
from agentgym_sandboxes.docker.session_pools import MAX_POOLS, SessionPools


def sessions(*failing: int) -> Factory:
    return Factory(failing={n: InfraError(f"start {n} failed") for n in failing}, kind=FakeSession)  # type: ignore[arg-type]


@asynccontextmanager
async def pooled(factory: Factory, **options: object) -> AsyncIterator[SessionPool]:
    config = DockerConfig(**{"max_sessions": 2, "spare_sessions": 0, "lease_timeout_s": 60.0, **options})  # type: ignore[arg-type]
    pool = SessionPool(config, factory)
    try:
        yield pool
    finally:
        await pool.close()
        assert all(container.closed for container in factory.made)


async def test_no_container_serves_two_sessions() -> None:
    factory = sessions()
    async with pooled(factory) as pool:
        for _ in range(3):
            async with pool.session() as session:
                await session.reset()
        await until(lambda: all(container.closed for container in factory.made))
    assert [container.asked for container in factory.made] == [["session.open", "session.reset"]] * 3


async def test_sessions_beyond_the_most_wait_for_their_turn() -> None:
    factory, live, most = sessions(), 0, 0

    async def episode(pool: SessionPool) -> None:
        nonlocal live, most
        async with pool.session():
            live += 1
            most = max(most, live)
            await asyncio.sleep(0.01)
            live -= 1

    async with pooled(factory) as pool:
        await asyncio.gather(*(episode(pool) for _ in range(8)))
        assert (most, len(factory.made)) == (2, 8)


@fast
async def test_one_that_waits_too_long_is_told_what_to_do() -> None:
    async with pooled(sessions(), max_sessions=1, lease_timeout_s=0.1) as pool, pool.session():
        with pytest.raises(SandboxUnavailable, match=r"no session came free within 0.1 s.*max_sessions higher"):
            async with pool.session():
                pass


async def test_spares_are_started_once_a_session_was_asked_for() -> None:
    factory = sessions()
    async with pooled(factory, spare_sessions=2) as pool:
        assert factory.num_starts == 0
        async with pool.session():
            await until(lambda: len(factory.made) == 3)
        async with pool.session():
            assert factory.made[1].asked == ["session.open"]
            await until(lambda: len(factory.made) == 4)


@pytest.mark.parametrize("trouble", [{"lost": "died"}, {"silent": True}], ids=str)
async def test_a_spare_that_is_dead_or_does_not_answer_is_thrown_away(trouble: dict[str, object]) -> None:
    factory = sessions()
    async with pooled(factory, spare_sessions=1) as pool:
        async with pool.session():
            await until(lambda: len(factory.made) == 2)
        vars(factory.made[1]).update(trouble)
        async with pool.session() as session:
            await session.reset()
            assert factory.made[2].asked == ["session.open", "session.reset"]
        await until(lambda: factory.made[1].closed)


async def test_a_start_is_given_up_when_the_pool_closes() -> None:
    factory, go, cancelled = sessions(), asyncio.Event(), asyncio.Event()

    async def slow(on_change: Callable[[], None]) -> FakeSession:
        try:
            await go.wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return await factory(on_change)

    pool = SessionPool(DockerConfig(lease_timeout_s=5.0), slow)
    entering = asyncio.create_task(pool.session().__aenter__())
    await settle()
    async with asyncio.timeout(30):
        await pool.close()
        assert cancelled.is_set()
        with pytest.raises(SandboxUnavailable, match="it was closed"):
            await entering
    assert not factory.made


async def test_a_container_that_starts_nevertheless_while_the_pool_closes_is_removed() -> None:
    factory = sessions()

    async def stubborn(on_change: Callable[[], None]) -> FakeSession:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await factory(on_change)

    pool = SessionPool(DockerConfig(spare_sessions=0, lease_timeout_s=5.0), stubborn)
    entering = asyncio.create_task(pool.session().__aenter__())
    await settle()
    await pool.close()
    with pytest.raises(SandboxUnavailable, match="it was closed"):
        await entering
    assert [container.closed for container in factory.made] == [True]


async def test_those_who_wait_for_a_session_are_refused_at_the_close() -> None:
    """Though the one that is under way never ends."""
    pool = SessionPool(DockerConfig(max_sessions=1, spare_sessions=0, lease_timeout_s=60.0), sessions())
    abandoned = pool.session()
    await abandoned.__aenter__()
    waiting = asyncio.create_task(pool.session().__aenter__())
    await settle()
    assert pool.gauges() == {"sessions_open": 1, "sessions_waiting": 1}
    await pool.close()
    async with asyncio.timeout(30):
        with pytest.raises(SandboxUnavailable, match="it was closed"):
            await waiting
        with pytest.raises(SandboxUnavailable, match="it was closed"):  # who comes later too
            await pool.session().__aenter__()
    await abandoned.__aexit__(None, None, None)


async def test_a_spare_whose_taker_is_cancelled_while_it_answers_is_not_forgotten() -> None:
    factory = sessions()
    async with pooled(factory, spare_sessions=1) as pool:
        async with pool.session():
            await until(lambda: len(factory.made) == 2)
        spare, asked, go = factory.made[1], asyncio.Event(), asyncio.Event()

        async def slow_ping() -> None:
            asked.set()
            await go.wait()

        spare.ping = slow_ping  # type: ignore[method-assign]
        entering = asyncio.create_task(pool.session().__aenter__())
        await asked.wait()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        go.set()
        await until(lambda: spare.closed)


async def test_a_session_that_ends_after_the_close_does_nothing_more() -> None:
    factory = sessions()
    pool = SessionPool(DockerConfig(spare_sessions=0), factory)
    late = pool.session()
    await late.__aenter__()
    await pool.close()
    [container] = factory.made
    container.closed = False  # its engine is gone: whoever asks it now gets no answer
    before = asyncio.all_tasks()
    await late.__aexit__(None, None, None)
    assert asyncio.all_tasks() == before
    await settle()
    assert not container.closed
    assert pool._meter.counts["sessions_lost_total"] == 0  # it was closed


async def test_a_wait_for_a_session_in_vain_is_among_the_waits() -> None:
    async with pooled(sessions(*range(100)), lease_timeout_s=0.3) as pool:
        with pytest.raises(SandboxUnavailable):
            async with pool.session():
                pass
        assert pool._meter.metrics()["sandbox/queue_p95_s"] >= 0.3


async def test_all_are_pinged_so_that_their_agents_know_that_we_live() -> None:
    factory = sessions()
    async with pooled(factory, spare_sessions=1, ping_every_s=0.02) as pool, pool.session():
        await until(lambda: len(factory.made) == 2 and all(c.num_pings > 1 for c in factory.made))


@fast
async def test_starts_that_go_on_failing_are_told_with_their_error() -> None:
    factory = sessions(*range(100))
    async with pooled(factory, lease_timeout_s=0.3) as pool:
        for _ in range(3):  # no place is lost by it
            with pytest.raises(SandboxUnavailable, match=r"start \d+ failed"):
                async with pool.session():
                    pass


async def test_what_can_not_be_removed_costs_the_container() -> None:
    factory = sessions()
    async with pooled(factory) as pool, pool.session() as session:
        factory.made[0].answers = [{"reason": "dirty"}]
        with pytest.raises(SandboxDirty, match="could not be removed"):
            await session.reset()
        with pytest.raises(SandboxLost):
            await session.run("1")


async def test_that_other_tasks_have_all_memory_is_said() -> None:
    factory = sessions()
    factory.go.clear()
    others = Others()
    async with pooled(factory, lease_timeout_s=0.05) as pool:
        pool._others = others
        others.short_s = math.inf  # this moment, however slow the machine
        with pytest.raises(SandboxUnavailable, match="tasks_memory_mib"):
            async with pool.session():
                pass


async def test_hosts_are_refused_where_there_is_no_network_for_sessions() -> None:
    async with pooled(sessions()) as pool:
        with pytest.raises(UserError, match=r"pypi\.org is asked for"):
            async with pool.session(SandboxSpec(session=True, network=("pypi.org",))):
                pass


@pytest.mark.asyncio(loop_scope="session")
async def test_a_session_whose_container_dies_is_lost_and_never_answers_wrong(docker: SandboxBackend) -> None:
    async with docker.session() as session:
        await session.run("x = 1")
        code = "import time; time.sleep(300); print('done')"
        call = asyncio.create_task(session.run(code, limits=Limits(wall_s=300.0)))
        await asyncio.sleep(0.3)
        name = session._container.name  # type: ignore[attr-defined]
        await asyncio.to_thread(subprocess.run, ["docker", "kill", name], capture_output=True, timeout=30, check=True)
        with pytest.raises(SandboxLost):
            await call
        with pytest.raises(SandboxLost):
            await session.read("f")
    async with docker.session() as session:
        assert (await session.run("1 + 1")).stdout == "2\n"


class Images:
    """Pools of sessions in images, of containers that only pretend; `factories` in the order of their pools."""

    def __init__(self) -> None:
        self.config = DockerConfig(max_sessions=1, spare_sessions=1, lease_timeout_s=60.0, ping_every_s=1e6)
        self.factories: list[Factory] = []

    def make(self, request: Request | None, others: Others) -> SessionPool:
        self.factories.append(sessions())
        return SessionPool(self.config, self.factories[-1], others=others)

    async def find(self, request: Request) -> Machine:
        """`tag` and its id are one image."""
        image = Image(image_id=request.image.replace("tag", "id0"), layers=(), digests=())
        return Machine(request=request, image=image, tree="")


def of_image(name: str) -> Request:
    return Request(name, "task", 512, name)


async def test_two_names_of_an_image_share_a_pool_and_all_pools_share_the_most() -> None:
    images = Images()
    pools = SessionPools(images.make, images.find)
    try:
        async with pools.session(of_image("tag")):
            waiting = asyncio.create_task(pools.session(of_image("id1")).__aenter__())
            await until(lambda: pools.gauges()["sessions_waiting"])
            assert not waiting.done() and pools.gauges()["sessions_open"] == 1
        await until(waiting.done)
        assert len(images.factories) == 2
        waiting.cancel()
        assert pools._pool(of_image("id0")) is pools._pool(await pools._by_id(of_image("tag")))
    finally:
        await pools.close()
    assert all(container.closed for factory in images.factories for container in factory.made)


async def test_warm_containers_of_images_that_were_not_used_for_longest_are_removed() -> None:
    images = Images()
    pools = SessionPools(images.make, images.find)
    try:
        for number in range(MAX_POOLS + 2):
            async with pools.session(of_image(f"id{number}")):
                pass
        gone, kept = images.factories[:2], images.factories[2:]
        await until(lambda: all(container.closed for factory in gone for container in factory.made))
        assert all(not factory.made[-1].closed for factory in kept if len(factory.made) > 1)
    finally:
        await pools.close()
