"""Hundreds of episodes in a row: nothing grows, neither here nor in the container."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from agentgym_sandboxes.audit.bench import is_within, play_episodes
from agentgym_sandboxes.audit.machine import Footprint, footprint
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.profile import OWNER_LABEL
from agentgym_sandboxes.host.reaper import owner_label

pytestmark = [
    pytest.mark.hostile,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # half a minute on an idle machine
    pytest.mark.asyncio(loop_scope="session"),
]

EPISODES, WARM_UP = 500, 300  # a thousand: see `agentgym sandbox bench`
NUM_REPLACEMENTS = 2 * EPISODES // 50 - 2
MAX_GROWTH_MIB = 2.0  # of our process: what the allocator does on its own within so many episodes
MAX_AGENT_GROWTH_MIB = 1.0
MAX_POOLED = 32 + 12  # threads: the loop's and the engine client's
MAX_KEPT = 10  # connections that the engine client keeps once it needed so many at a time
SETTLE_S = 120.0


async def shell(*command: str) -> list[str]:
    done = await asyncio.to_thread(
        subprocess.run, ["docker", *command], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


async def our_containers(owner: str | None = None) -> set[str]:
    """Those of this process, or of one backend in it."""
    form = '{{.ID}} {{.Label "' + OWNER_LABEL + '"}}'
    lines = [line.split() for line in await shell("ps", "--all", "--format", form)]
    return {line[0] for line in lines if len(line) == 2 and line[1].startswith(owner or owner_label())}


def num_replaced(backend: DockerBackend) -> float:
    return sum(value for name, value in backend.metrics().items() if name.startswith("sandbox/replaced_"))


@dataclass(frozen=True)
class Inside:
    """What there is in a container between calls. memory, descriptors: of the agent's own processes."""

    processes: int
    files: tuple[str, ...]
    descriptors: int
    memory_mib: float


async def look_inside(container: str) -> Inside:
    pids = [line.split()[0] for line in (await shell("top", container, "-o", "pid"))[1:]]
    find = "import os; print(*[f'{d}/{n}' for d in ('/work', '/tmp') for n in os.listdir(d)], sep='\\n')"
    files = [line for line in await shell("exec", "--user", "0", container, "python3", "-c", find) if line]
    statuses = [Path("/proc", pid, "status").read_text() for pid in pids]
    return Inside(
        processes=len(pids),
        files=tuple(files),
        descriptors=sum(len(list(Path("/proc", pid, "fd").iterdir())) for pid in pids),
        memory_mib=sum(int(status.partition("VmRSS:")[2].split()[0]) for status in statuses) / 1024,
    )


async def settled(num_containers: int, most: Footprint | None = None) -> Footprint:
    """Our footprint once what was being replaced is: when there are so many containers, it is within `most` and has
    been the same for a while."""
    held, num_same = None, 0
    end_s = time.monotonic() + SETTLE_S
    while True:
        now = replace(footprint(len(await our_containers())), threads=num_threads())
        num_same = num_same + 1 if held and is_within(now, held) and is_within(held, now) else 0
        held = now
        is_whole = now.containers == num_containers and (most is None or is_within(now, most))
        if (num_same >= 10 and is_whole) or time.monotonic() > end_s:
            return now
        await asyncio.sleep(0.1)


def num_threads() -> int:
    """Of no pool. A pool makes its threads when it first needs so many at a time."""
    pooled = [t for t in threading.enumerate() if t.name.startswith(("asyncio_", "docker-engine_"))]
    assert len(pooled) <= MAX_POOLED
    return threading.active_count() - len(pooled)


async def play_on_and_on() -> tuple[Footprint, Footprint, float]:
    """What we held before and after, and how many containers were replaced between."""
    backend = DockerBackend(DockerConfig(pool_size=1, max_uses=50))
    num_containers = 3  # one that serves, one spare, one for the next session
    async with backend:
        await play_episodes(backend, WARM_UP, sessions=True)
        before, replaced = await settled(num_containers), num_replaced(backend)
        most = replace(before, descriptors=before.descriptors + MAX_KEPT)
        await play_episodes(backend, EPISODES, sessions=True)
        # A worn one serves until another has started.
        while num_replaced(backend) - replaced < NUM_REPLACEMENTS:
            await play_episodes(backend, 50, sessions=True)
        return most, await settled(num_containers, most), num_replaced(backend) - replaced


def play_in_this_process() -> tuple[Footprint, Footprint, float]:
    return asyncio.run(play_on_and_on())


async def test_hundreds_of_episodes_with_replacements_and_sessions_leave_us_as_we_were(engine: str) -> None:
    """In a process of its own, which holds nothing of other tests."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        running = asyncio.get_running_loop().run_in_executor(processes, play_in_this_process)
        before, after, num_replacements = await running
    assert num_replacements >= NUM_REPLACEMENTS
    assert is_within(after, before), (before, after)
    assert after.memory_mib - before.memory_mib < MAX_GROWTH_MIB, (before, after)


async def test_one_container_is_after_hundreds_of_calls_as_it_was(engine: str) -> None:
    async with DockerBackend(DockerConfig(pool_size=1, spares=0, max_uses=100_000)) as backend:
        [container] = await our_containers(backend._owner)
        await play_episodes(backend, WARM_UP // 3, sessions=False)
        before = await look_inside(container)
        await play_episodes(backend, EPISODES // 2, sessions=False)  # two calls each
        after = await look_inside(container)
        assert num_replaced(backend) == 0
    assert (after.processes, after.files, after.descriptors) == (before.processes, (), before.descriptors)
    assert after.memory_mib - before.memory_mib < MAX_AGENT_GROWTH_MIB, (before, after)
