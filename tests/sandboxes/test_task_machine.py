"""A task's own container: other users, files through the engine, and a second one that the first can't forge."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from images import image_of

from agentgym.errors import UserError
from agentgym.sandbox import FileRefused, SandboxUnavailable, Session
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.tree import PYTHON, TREE

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("task containers")]
PASSWD = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"
SPEC = SandboxSpec(session=True, profile="task", memory_mib=128, workdir="/app", env=("A=1",), cpus=0.5)


@pytest.fixture(scope="module")
def image(busybox: Path) -> Iterator[str]:
    with image_of(busybox, ["ENV PATH=/bin KEPT=yes", "WORKDIR /srv"], {"etc/passwd": PASSWD}) as image:
        yield image


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def docker(engine: str, image: str) -> AsyncIterator[DockerBackend]:
    config = DockerConfig(pool_size=1, spares=0, spare_sessions=0, reap_every_s=1e6)
    config = replace(config, memory_mib=64, container_memory_mib=128)
    async with DockerBackend(config) as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="session")
async def session(docker: DockerBackend, image: str) -> AsyncIterator[Session]:
    async with docker.session_for(replace(SPEC, image=image)) as session:
        yield session


def names_in(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return opened.getnames()


async def test_commands_run_as_the_user_that_is_named_with_what_the_spec_says(session: Session) -> None:
    assert (await session.exec("echo $A $KEPT $PWD")).stdout == "1 yes /app\n"
    said = await session.machine.exec("id -u; echo $HOME $A $B; pwd", user="app", env={"B": "2"}, folder="/bin")
    assert said.stdout == "1000\n/home/app 1 2\n/bin\n"
    with pytest.raises(UserError, match="no 'ghost'"):
        await session.machine.exec("id", user="ghost")
    assert (await session.exec("id -u")).stdout == "0\n"


async def test_files_put_there_replace_what_was_planted_and_lead_nowhere_else(session: Session) -> None:
    machine = session.machine
    await session.exec("ln -s /etc /tests; mkdir /logs; echo planted > /logs/old; ln -s /etc/passwd /logs/link")
    await machine.put("/tests", {"test.sh": b"#!/bin/sh\necho ran\n", "a/b/data": b"x"}, replace=True)
    assert (
        await session.exec("/tests/test.sh; cat /tests/a/b/data; ls /etc")
    ).stdout == "ran\nxhostname\nhosts\nmtab\npasswd\nresolv.conf\n"
    await machine.put("/logs", {"new": b""})
    assert await machine.get_file("/logs/old") == b"planted\n"
    for path, why in (
        ("/logs/link", "regular"),
        ("/logs", "regular"),
        ("/none", "there is no"),
        ("/proc/1/environ", "mount"),
    ):
        with pytest.raises(FileRefused, match=why):
            await machine.get_file(path)
    with pytest.raises(FileRefused, match="at most 3"):
        await machine.get_file("/logs/old", max_bytes=3)


async def test_a_folder_comes_out_as_data_without_links_that_leave_and_devices(session: Session) -> None:
    await session.exec(
        "mkdir -p d/e; echo 1 > d/e/f; chmod 4755 d/e/f; ln d/e/f d/same; ln -s e/f d/in; ln -s /etc d/out; "
        "touch d/x.pyc"
    )
    found = await session.machine.get("/app/d", exclude=("*.pyc",))
    assert sorted(names_in(found)) == ["e", "e/f", "in", "same"]
    assert "out" in names_in(await session.machine.get("/app/d", keep_links=True))
    with tarfile.open(fileobj=io.BytesIO(found)) as archive:
        assert archive.getmember("e/f").mode | archive.getmember("same").mode == 0o755
    await session.machine.put("/copy", found)
    assert (await session.exec("cat /copy/same /copy/in")).stdout == "1\n1\n"
    with pytest.raises(FileRefused, match=r"too large|more than"):
        await session.machine.get("/bin", max_bytes=1000)


async def test_a_frozen_machine_is_another_container_with_the_files_and_no_process_of_the_first(
    docker: DockerBackend, session: Session
) -> None:
    await session.exec("setsid sleep 4000 & echo 42 > answer; echo changed >> /etc/passwd")
    await session.exec(f"echo {TREE}/lib/libkrb5.so.3 > /etc/ld.so.preload; echo 'raise SystemExit' > /json.py")
    async with session.machine.freeze() as frozen:
        await session.exec("echo 43 > answer")
        assert await frozen.get_file("/app/answer") == b"42\n" and names_in(await frozen.get("/app")) == ["answer"]
        kinds = {change.path: change.kind for change in frozen.changes}
        assert (kinds["/etc/passwd"], kinds["/app/answer"]) == ("changed", "added")
        async with docker.session_for(replace(SPEC, image=frozen.image)) as verifier:
            said = await verifier.exec("cat answer; echo $A $KEPT; ps")
            assert said.stdout.startswith("42\n1 yes\n") and "4000" not in said.stdout
            ours = [*PYTHON, "-I", "-c", "print('krb5' in open('/proc/self/maps').read())"]
            assert (await verifier.exec(ours)).stdout == "False\n"  # it would be in our agent, too
    with pytest.raises(SandboxUnavailable, match=r"[Nn]o such image"):
        async with docker.session_for(replace(SPEC, image=frozen.image)):
            pass
    assert "4000" in (await session.exec("ps")).stdout
    await session.machine.end_processes()
    assert "4000" not in (await session.exec("ps")).stdout


@pytest.mark.hostile
async def test_public_is_the_engine_s_network_only_where_the_run_says_so(docker: DockerBackend, image: str) -> None:
    spec = replace(SPEC, image=image, network="public")
    async with docker.session_for(spec) as session:
        assert "eth0" not in (await session.exec("ls /sys/class/net; env")).stdout
        assert "http_proxy" in (await session.exec("env")).stdout
    async with DockerBackend(replace(docker.config, public_network="bridge")) as bridged:
        async with bridged.session_for(spec) as session:
            said = (await session.exec("ls /sys/class/net; env")).stdout
            assert "eth0" in said and "http_proxy" not in said
        async with bridged.session_for(replace(spec, network=())) as session:
            assert "eth0" not in (await session.exec("ls /sys/class/net")).stdout
