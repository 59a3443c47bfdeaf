"""Engines that restart, hang, fill up or die under calls, on engines of the tests' own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from holding import HOLD, LIMITS, Holding
from pool_fakes import until

from agentgym.sandbox import RunStatus, SandboxDiskFull, SandboxUnavailable
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.image import RECIPE
from agentgym_sandboxes.docker.profile import SettingsOf, container_settings
from tests.sandboxes.engines import PrivateEngine, private_engine

pytestmark = [pytest.mark.hostile, pytest.mark.slow]


@pytest.fixture(scope="module")
def one(archive: Path) -> Iterator[PrivateEngine]:
    with private_engine(archive) as engine:
        yield engine


@pytest.fixture(scope="module")
def two(archive: Path) -> Iterator[PrivateEngine]:
    with private_engine(archive) as engine:
        yield engine


@asynccontextmanager
async def started(
    *engines: PrivateEngine, settings_of: SettingsOf = container_settings, **options: object
) -> AsyncIterator[DockerBackend]:
    """A backend on these engines that looks after them all the time, with all its containers up."""
    config = DockerConfig(
        engines=tuple(engine.url for engine in engines),
        **{
            "pool_size": 2,
            "spares": 0,
            "engine_failures": 2,
            "ping_every_s": 0.5,
            "ping_timeout_s": 10.0,
            "lease_timeout_s": 180.0,
            **options,
        },  # type: ignore[arg-type]
    )
    async with DockerBackend(config, settings_of) as backend:
        await until(lambda: gauge(backend, "containers_live") == config.pool_size)
        yield backend


def gauge(backend: DockerBackend, name: str) -> float:
    return backend.metrics()[f"sandbox/{name}"]


async def answers(backend: DockerBackend, number: int, seconds: float = 0.0) -> None:
    """A call whose answer no other call has."""
    code = f"{HOLD}time.sleep({seconds}); print({number} * 1000003)"
    result = await backend.run(code, limits=LIMITS)
    assert (result.status, result.stdout) == (RunStatus.OK, f"{number * 1000003}\n")


async def test_calls_outlast_restarts_of_their_engine(one: PrivateEngine) -> None:
    holding = Holding(10_000)  # all, until the second restart
    async with started(one, settings_of=holding) as backend:
        under_way = [asyncio.create_task(answers(backend, number)) for number in range(8)]
        new: list[asyncio.Task[None]] = []
        for restarts in (1, 2):  # twice, and none of the calls is given up for that
            await until(lambda: gauge(backend, "slots_used") == 8)
            if restarts == 2:
                holding.num = 0
            restart = asyncio.create_task(asyncio.to_thread(one.restart))
            await until(lambda restarts=restarts: gauge(backend, "retries_total") >= 8 * restarts)  # type: ignore[misc]
            numbers = range(10 * restarts, 10 * restarts + 6)
            new += [asyncio.create_task(answers(backend, number)) for number in numbers]
            await restart
        await asyncio.gather(*under_way, *new)
        metrics = backend.metrics()
        assert metrics["sandbox/calls_total"] == metrics["sandbox/calls_ok_total"] == 20
        assert metrics["sandbox/retries_total"] >= 16
        await until(lambda: gauge(backend, "containers_live") == 2 and not gauge(backend, "engines_open"))


async def test_an_engine_that_hangs_is_left_alone_until_it_answers(one: PrivateEngine) -> None:
    async with started(one, engine_timeout_s=5.0, ping_timeout_s=2.0) as backend:
        one.signal(signal.SIGSTOP)
        try:
            calls = [asyncio.create_task(answers(backend, number)) for number in range(4)]
            await until(lambda: gauge(backend, "engines_open") == 1)
            began_s = time.monotonic()
            with pytest.raises(SandboxUnavailable, match=r"no Docker engine answers; tried .*timed out"):
                await DockerBackend(DockerConfig(engine=one.url, engine_timeout_s=120.0)).start()
            assert time.monotonic() - began_s < 60
        finally:
            one.signal(signal.SIGCONT)
        await asyncio.gather(*calls)
        await until(lambda: gauge(backend, "containers_live") == 2 and not gauge(backend, "engines_open"))
        await answers(backend, 5)


async def test_a_call_on_engines_that_are_gone_names_each_and_its_error(one: PrivateEngine) -> None:
    async with started(one, lease_timeout_s=4.0) as backend:
        await asyncio.to_thread(one.stop)
        try:
            with pytest.raises(SandboxUnavailable) as caught:
                await answers(backend, 1)
        finally:
            await asyncio.to_thread(one.start)
        await until(lambda: gauge(backend, "containers_live") == 2)
        assert "0 of 2 containers are up" in str(caught.value) and one.url in str(caught.value)
        await answers(backend, 2)


async def test_a_full_disk_is_told_with_its_place_and_does_not_stop_what_runs(archive: Path) -> None:
    with private_engine(archive, size_mib=300) as small:
        ballast = small.data_root / "ballast"
        async with started(small, pool_size=1, max_uses=20, lease_timeout_s=4.0) as backend:
            fill(ballast)
            for number in range(30):  # worn, but there is no other
                await answers(backend, number)
            await until(lambda: gauge(backend, "start_failures_total") > 0)
            await answers(backend, 30)
            small.docker("kill", *small.docker("ps", "-q").split())
            with pytest.raises(SandboxDiskFull, match=rf"no room .* in {small.data_root}.*0\.\d of 300 MiB free"):
                await answers(backend, 31)
            with pytest.raises(SandboxDiskFull, match=str(small.data_root)):
                await DockerBackend(backend.config).start()
            ballast.unlink()
            await until(lambda: gauge(backend, "containers_live") == 1)
            await answers(backend, 32)
            assert gauge(backend, "calls_total") == 32


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


async def test_containers_go_to_the_engine_that_has_fewest(one: PrivateEngine, two: PrivateEngine) -> None:
    async with started(one, two, pool_size=4) as backend:
        assert [len(engine.docker("ps", "-q").split()) for engine in (one, two)] == [2, 2]
        async with backend.session(), backend.session():
            await until(lambda: all(len(e.docker("ps", "-q").split()) >= 3 for e in (one, two)))


async def test_calls_go_on_when_one_of_two_engines_is_killed(one: PrivateEngine, two: PrivateEngine) -> None:
    async with started(one, two) as backend:
        calls = [asyncio.create_task(answers(backend, number, 1.0)) for number in range(8)]
        await until(lambda: gauge(backend, "slots_used") == 8)
        two.signal(signal.SIGKILL)
        try:
            await asyncio.gather(*calls)
            await until(lambda: gauge(backend, "containers_live") == 2)
            assert len(one.docker("ps", "-q").split()) == 2
            await until(lambda: gauge(backend, "engines_open") == 1)
            await asyncio.gather(*(answers(backend, number) for number in range(8, 30)))
            assert gauge(backend, "calls_total") == 30
        finally:
            await asyncio.to_thread(two.restart)
        await until(lambda: gauge(backend, "engines_open") == 0)


async def test_a_start_goes_on_without_an_engine_that_does_not_answer(one: PrivateEngine) -> None:
    gone = "unix:///nowhere/docker.sock"
    config = DockerConfig(engines=(gone, one.url), pool_size=1, spares=0)
    async with DockerBackend(config) as backend:
        await answers(backend, 1)
        assert gauge(backend, "engines_open") == 1


async def test_every_engine_must_have_the_image_and_can_be_given_it(one: PrivateEngine, tmp_path: Path) -> None:
    with private_engine(None) as empty:
        backend = DockerBackend(DockerConfig(engines=(one.url, empty.url)))
        with pytest.raises(SandboxUnavailable, match=rf"engine at {empty.url} has no image .*sandbox build"):
            await backend.start()
        source, target = [await Engine.connect(engine.url, 10.0) for engine in (one, empty)]
        try:
            await source.save(RECIPE.reference, tmp_path / "image.tar", 60.0)
            await target.load(tmp_path / "image.tar", 60.0)
        finally:
            await source.close()
            await target.close()
        assert (await backend.probe()).detail.count("cgroup v") == 2
