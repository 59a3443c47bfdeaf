"""Volumes: a folder of this machine in every session, read-only, copied once to the engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.sandbox import Limits, RunStatus
from agentgym_sandboxes.docker import volumes
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.image import RECIPE
from agentgym_sandboxes.docker.profile import LABEL, OWNER_LABEL
from agentgym_sandboxes.host.reaper import owner_label


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of contents that no other test has."""
    made = tmp_path / "tools"
    (made / "bin").mkdir(parents=True)
    (made / "bin" / "hello").write_text(f"#!/bin/sh\necho hello {uuid.uuid4()}\n")
    (made / "bin" / "hello").chmod(0o700)
    (made / "bin" / "again").symlink_to("hello")
    (made / "twice").hardlink_to(made / "bin" / "hello")
    return made


@pytest.fixture
async def docker(engine: str) -> AsyncIterator[Engine]:
    connected = await Engine.connect(None, 30.0)
    yield connected
    await connected.close()


async def remove_all(docker: Engine, name: str) -> None:
    for owned in await docker.owned():
        if owned.name == name:
            await docker.remove(owned.container_id)
    if name in await volumes.unused(docker):
        await volumes.remove(docker, name)


async def test_a_session_has_a_folder_that_it_cannot_change_and_its_volume_is_kept_for_the_next(
    docker: Engine, folder: Path
) -> None:
    name = volumes.PREFIX + volumes.hash_of(folder)[:16]
    config = DockerConfig(pool_size=1, spares=0, reap_every_s=1e6, volumes={"/opt/tools": str(folder)})
    try:
        async with DockerBackend(config) as backend:
            async with backend.session() as session:
                said = await session.exec(
                    "/opt/tools/bin/again && /opt/tools/twice && stat -c %u:%a /opt/tools/bin/hello"
                )
                [first, second, mode] = said.stdout.split("\n")[:3]
                assert first == second and first.startswith("hello ") and mode == "0:755"
                refused = await session.exec("echo > /opt/tools/bin/hello; touch /opt/tools/new; rm /opt/tools/twice")
                assert refused.stderr.count("Read-only file system") == 3
                assert name not in await volumes.unused(docker)
            assert (await backend.run("import os; print(os.path.exists('/opt/tools'))")).stdout == "False\n"
        assert (await volumes.unused(docker))[name] == "tools"
        gone = folder.rename(folder.with_name("moved"))
        assert await volumes.fill(docker, folder, volumes.hash_of(gone), RECIPE.reference, owner_label()) == name
    finally:
        await remove_all(docker, name)


async def test_a_volume_whose_run_was_killed_while_it_was_filled_is_filled_by_the_next(
    docker: Engine, folder: Path
) -> None:
    digest = volumes.hash_of(folder)
    name = volumes.PREFIX + digest[:16]
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    owner = f"{owner_label().split(':')[0]}:{dead.pid}:1:backend"
    labels = {LABEL: "1", OWNER_LABEL: owner}
    mounts = {"Mounts": [volumes.mount(name, volumes.INSIDE, read_only=False)]}
    left = {"Image": RECIPE.reference, "Cmd": ["none"], "Labels": labels, "HostConfig": mounts}
    config = DockerConfig(pool_size=1, spares=0, reap_every_s=1e6, volumes={"/opt/tools": str(folder)})
    try:
        await docker.create(left, name)
        both = (volumes.fill(docker, folder, digest, RECIPE.reference, owner_label()) for _ in range(2))
        assert await asyncio.gather(*both) == [name, name]
        assert name not in {owned.name for owned in await docker.owned()}
        async with DockerBackend(config) as backend, backend.session() as session:
            assert (await session.exec("/opt/tools/bin/hello")).exit_code == 0
    finally:
        await remove_all(docker, name)


async def test_a_volume_that_is_removed_within_a_run_is_made_again(docker: Engine, folder: Path) -> None:
    kept = volumes.Volumes({"/opt/tools": str(folder)}, owner_label())
    [made] = await kept.on(docker, RECIPE.reference)
    name = str(made["Source"])
    try:
        for _ in range(2):
            await volumes.remove(docker, name)
            assert await kept.on(docker, RECIPE.reference) == [made]
            assert (await volumes.unused(docker))[name] == "tools"
    finally:
        await remove_all(docker, name)


async def test_only_a_command_that_says_so_may_reserve_more_than_it_may_use(engine: str) -> None:
    reserve = "import mmap; mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | 0x4000, prot=mmap.PROT_READ)"  # NORESERVE
    config = DockerConfig(pool_size=1, spares=0, reap_every_s=1e6, container_memory_mib=512, memory_mib=256)
    async with DockerBackend(config) as backend, backend.session() as session:
        assert "Cannot allocate memory" in (await session.exec(["python3", "-c", reserve])).stderr
        free = Limits(reserves=True, wall_s=60, cpu_s=60)
        assert (await session.exec(["python3", "-c", reserve], limits=free)).status is RunStatus.OK
        used = await session.exec(["python3", "-c", "bytearray(2 << 30)"], limits=free)
        assert used.status is RunStatus.OOM and used.limit is not None and used.limit.allowed == 512


def test_a_hash_is_of_contents_names_and_rights(folder: Path) -> None:
    first = volumes.hash_of(folder)
    (folder / "twice").touch()
    assert volumes.hash_of(folder) == first
    (folder / "twice").chmod(0o600)
    changed = volumes.hash_of(folder)
    (folder / "twice").rename(folder / "thrice")
    assert len({first, changed, volumes.hash_of(folder)}) == 3


def test_a_folder_that_is_missing_and_a_path_that_is_taken_are_named() -> None:
    with pytest.raises(UserError, match=r"sandbox\.options\.volumes: '/no/such' is no folder"):
        volumes.hash_of(Path("/no/such"))
    for at in ("tools", "/work", "/a/../b", "/"):
        with pytest.raises(UserError, match="give an absolute path, as /tools"):
            DockerConfig(volumes={at: "/tmp"})
