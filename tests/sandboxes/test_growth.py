"""A thousand episodes in a row: nothing grows, neither here nor in the container."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentgym.evals.machine import Footprint, footprint
from agentgym.evals.sandbox_bench import play_episodes
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.profile import OWNER_LABEL
from agentgym_sandboxes.docker.reaper import owner_label

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # half a minute on an idle machine
    pytest.mark.asyncio(loop_scope="session"),
]

EPISODES, WARM_UP = 1000, 300  # until the engine client has opened all the connections that it keeps
MAX_GROWTH_MIB = 3.0  # of our process: what the allocator does on its own within so many episodes
MAX_AGENT_GROWTH_MIB = 2.0


async def shell(*command: str) -> list[str]:
    done = await asyncio.to_thread(
        subprocess.run, ["docker", *command], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.splitlines()


async def our_containers() -> set[str]:
    form = '{{.ID}} {{.Label "' + OWNER_LABEL + '"}}'
    lines = [line.split() for line in await shell("ps", "--all", "--format", form)]
    return {line[0] for line in lines if len(line) == 2 and line[1].startswith(owner_label())}


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


async def settled(backend: DockerBackend, most: Footprint | None = None) -> Footprint:
    """Once what was being replaced is: our footprint, within `most` if that ever comes."""
    for _ in range(100):
        now = footprint(len(await our_containers()))
        metrics = backend.metrics()
        calm = metrics["sandbox/containers_live"] + metrics["sandbox/containers_spare"] >= now.containers
        if calm and (most is None or all(_counts(now)[i] <= _counts(most)[i] for i in range(4))):
            break
        await asyncio.sleep(0.1)
    return now


def _counts(held: Footprint) -> tuple[int, int, int, int]:
    return held.descriptors, held.threads, held.children, held.containers


async def test_a_thousand_episodes_with_replacements_and_sessions_leave_us_as_we_were(engine: str) -> None:
    backend = DockerBackend(DockerConfig(pool_size=1, max_uses=50))
    sessions = (await backend.probe()).sessions
    async with backend:
        await play_episodes(backend, WARM_UP, sessions=sessions)
        before = await settled(backend)
        replaced = num_replaced(backend)
        await play_episodes(backend, EPISODES, sessions=sessions)
        after = await settled(backend, before)
        assert num_replaced(backend) - replaced >= 2 * EPISODES // 50 - 2
    assert all(b <= a for a, b in zip(_counts(before), _counts(after), strict=True)), (before, after)
    assert after.memory_mib - before.memory_mib < MAX_GROWTH_MIB, (before, after)


async def test_one_container_is_after_a_thousand_calls_as_it_was(engine: str) -> None:
    others = await our_containers()
    async with DockerBackend(DockerConfig(pool_size=1, spares=0, max_uses=100_000)) as backend:
        [container] = await our_containers() - others
        await play_episodes(backend, WARM_UP // 3, sessions=False)
        before = await look_inside(container)
        await play_episodes(backend, EPISODES // 2, sessions=False)  # two calls each
        after = await look_inside(container)
        assert num_replaced(backend) == 0
    assert (after.processes, after.files, after.descriptors) == (before.processes, (), before.descriptors)
    assert after.memory_mib - before.memory_mib < MAX_AGENT_GROWTH_MIB, (before, after)
