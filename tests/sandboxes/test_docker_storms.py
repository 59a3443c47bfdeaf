"""A real engine under random cancellations, kills and sessions that nobody ends: every answer is its call's own,
and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
from pathlib import Path
from random import Random

import pytest
from holding import owned
from pool_fakes import until

from agentgym.sandbox import Limits, RunStatus
from agentgym.testing import settle
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig

# each on a loop of its own: there are no tasks of others
pytestmark = pytest.mark.hostile

NUM_CALLS = 200


class Watch:
    """What there is besides what there was: tasks, descriptors, and one backend's containers."""

    def __init__(self, backend: DockerBackend) -> None:
        self.backend = backend
        self.tasks = asyncio.all_tasks()
        self.complaints: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))

    async def containers(self) -> list[str]:
        return [c.name for c in await owned() if c.owner == self.backend._owner]

    async def check(self) -> None:
        gc.collect()
        await asyncio.sleep(0.05)
        await settle()
        asyncio.get_running_loop().set_exception_handler(None)
        assert self.complaints == []
        assert asyncio.all_tasks() - self.tasks == set()
        assert await self.containers() == []


def num_sockets() -> int:
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count


class Storm:
    def __init__(self, backend: DockerBackend, fate: Random) -> None:
        self.backend, self.fate = backend, fate
        self.cancelled: set[asyncio.Task[None]] = set()
        self.exposed: list[asyncio.Task[None]] = []  # to the last kill
        self.held = backend.session()  # open to the end

    async def call(self, number: int) -> None:
        code = f"import time; time.sleep({self.fate.choice((0, 0, 0.01, 0.1, 0.3))}); print({number} * 1000003)"
        result = await self.backend.run(code, limits=Limits(wall_s=20.0))
        assert (result.status, result.stdout) == (RunStatus.OK, f"{number * 1000003}\n")

    async def session(self, number: int) -> None:
        async with self.backend.session() as session:
            await session.run(f"x = {number}")
            await session.exec("sleep 1000 &")
            await asyncio.sleep(self.fate.choice((0.0, 0.3)))
            assert (await session.run("x")).stdout == f"{number}\n"

    async def kill_one(self, under_way: list[asyncio.Task[None]]) -> None:
        """Never under a call that has lost a container already: such a one may fail."""
        pool, before = self.backend._pool, self.num_lost
        assert pool is not None
        while self.num_lost == before:  # one may be worn and gone before it is killed
            if self.exposed:
                await asyncio.wait(self.exposed)
            self.exposed = [task for task in under_way if not task.done()]
            await until(lambda: bool(pool._live))
            container = self.fate.choice(pool._live)
            command = ["docker", "kill", container.name]
            await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=30)
            await until(lambda: container.lost is not None)  # noqa: B023

    @property
    def num_lost(self) -> float:
        return self.backend.metrics()["sandbox/replaced_lost_total"]

    async def play(self) -> list[asyncio.Task[None]]:
        """All calls and sessions, ended."""
        tasks: list[asyncio.Task[None]] = []
        abandoned = self.backend.session()  # forgotten at the end
        await abandoned.__aenter__()
        await self.held.__aenter__()
        for number in range(NUM_CALLS):
            work = self.session(number) if number % 25 == 0 else self.call(number)
            tasks.append(asyncio.create_task(work))
            if self.fate.random() < 0.2:
                which = self.fate.choice(tasks)
                self.cancelled.add(which)
                which.cancel()
            if number % 70 == 35:
                await self.kill_one(tasks)
            await asyncio.sleep(self.fate.choice((0.0, 0.0, 0.01, 0.03)))
        await asyncio.wait(tasks)
        return tasks


@pytest.mark.parametrize("seed", [0])
async def test_in_a_storm_every_call_that_is_not_cancelled_gets_its_own_answer(engine: str, seed: int) -> None:
    sockets = num_sockets()
    backend = DockerBackend(DockerConfig(pool_size=2, slots=4, max_uses=40, max_sessions=4, starts_per_s=100))
    watch = Watch(backend)
    async with backend:
        storm = Storm(backend, Random(seed))
        for task in await storm.play():
            assert task.cancelled() or task.exception() is None, task.exception()
            assert not task.cancelled() or task in storm.cancelled
        await until(lambda: backend.metrics()["sandbox/slots_used"] == 0)  # what was cancelled is being ended
        await until(lambda: backend.metrics()["sandbox/sessions_open"] == 1)  # the other was collected
        metrics = backend.metrics()
        assert metrics["sandbox/calls_waiting"] == metrics["sandbox/sessions_waiting"] == 0
        assert metrics["sandbox/replaced_lost_total"] >= 3 and metrics["sandbox/calls_failed_total"] == 0
    await storm.held.__aexit__(None, None, None)
    await watch.check()
    await until(lambda: num_sockets() <= sockets)  # threads of the engine's client let theirs go


async def test_a_start_that_is_cancelled_at_any_time_leaves_nothing(engine: str) -> None:
    for after_s in (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3):
        backend = DockerBackend(DockerConfig(pool_size=2))
        watch = Watch(backend)
        starting = asyncio.create_task(backend.start())
        await asyncio.sleep(after_s)
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        await backend.close()
        await watch.check()
