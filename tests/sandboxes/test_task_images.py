"""Images of tasks: built by what they are made of, pulled by digest, evicted by use, made ahead."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio
from docker.errors import APIError
from registries import serve_registry

from agentgym.errors import InfraError
from agentgym.sandbox import ImageUnusable
from agentgym.testing import settle
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.ahead import Ahead
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.contexts import BuildContext
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.failures import EngineDiskFull
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.image_store import ImageStore, marker_of
from agentgym_sandboxes.docker.machine import Machine, Request
from agentgym_sandboxes.docker.room import Room
from agentgym_sandboxes.docker.task_images import TaskImages

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("task containers")]
T = TypeVar("T")
TASK = SandboxSpec(session=True, profile="task", memory_mib=128)
DOCKERFILE = """FROM scratch
COPY busybox /bin/busybox
COPY busybox /bin/sh
ENV PATH=/bin GREETING=hello
WORKDIR /srv
"""
CONFIG = replace(
    DockerConfig(pool_size=1, spares=0, spare_sessions=0, reap_every_s=1e6), memory_mib=64, container_memory_mib=128
)


@pytest_asyncio.fixture(loop_scope="session")
async def store(engine: str) -> AsyncIterator[ImageStore]:
    """Of this machine's engine, apart from all others; empty at the end."""
    connected = await Engine.connect(None, 30.0)
    store = ImageStore(connected, family=f"agentgym-test-{os.getpid()}")
    try:
        yield store
    finally:
        await store.evict(0)
        assert await store.listed() == []
        await connected.close()


async def remove(store: ImageStore, name: str) -> None:
    """Remove what a backend of this test made."""
    usual = ImageStore(store._engine)
    for one in await usual.listed():
        if one.name == name:
            assert await usual._remove(one)


def context_of(folder: Path, busybox: Path, more: str = "") -> Path:
    folder.mkdir()
    shutil.copy(busybox, folder / "busybox")
    (folder / "Dockerfile").write_text(DOCKERFILE + more)
    return folder


async def test_an_image_is_built_once_for_what_is_in_its_folder(
    store: ImageStore, busybox: Path, tmp_path: Path
) -> None:
    folder = context_of(tmp_path / "task", busybox, "COPY data /data\n")
    (folder / "data").write_text("1")
    makers = [TaskImages(store._engine, "one engine", "amd64", store) for _ in range(2)]
    context = BuildContext(str(folder))
    ids = {image.image_id for image in await asyncio.gather(*(one.provide(context, 60) for one in makers))}
    assert len(ids) == 1  # the second had to wait for the first
    async with DockerBackend(CONFIG) as docker, docker.session_for(replace(TASK, context=str(folder))) as session:
        said = await session.exec("echo $GREETING; busybox pwd; busybox cat /data")
        assert said.stdout == "hello\n/srv\n1"
    await remove(store, str(folder))
    (folder / "data").write_text("2")
    assert (await TaskImages(store._engine, "", "amd64", store).provide(context, 60)).image_id not in ids
    assert [one.name for one in await store.listed() if one.name == str(folder)] == [str(folder)] * 2


async def test_what_can_not_be_built_is_named_with_the_engine_s_last_lines_and_leaves_nothing(
    store: ImageStore, busybox: Path, tmp_path: Path
) -> None:
    only = f"only={tmp_path}"
    folder = context_of(tmp_path / "task", busybox, f"LABEL {only}\nCOPY gone /gone\n")
    makers = TaskImages(store._engine, "", "amd64", store)
    for _ in range(2):
        with pytest.raises(ImageUnusable, match=r"(?s)task/Dockerfile: .*COPY failed.*Step 6/.* : LABEL only"):
            await makers.provide(BuildContext(str(folder)), 60)
    left = await store._engine.call_long("list", lambda c: c.images(all=True, filters={"label": [only]}), 30)
    assert left == []
    (folder / "Dockerfile").write_text("FROM scratch\nRUN --mount=type=cache,target=/x true\n")
    with pytest.raises(ImageUnusable, match="needs BuildKit"):
        await makers.provide(BuildContext(str(folder)), 60)
    with pytest.raises(ImageUnusable, match="other: it can't be read"):
        await makers.provide(BuildContext(str(folder), "other"), 60)


async def test_an_image_is_pulled_once_by_its_name_and_refused_for_another_architecture(
    store: ImageStore, busybox: Path
) -> None:
    makers = TaskImages(store._engine, "", "amd64", store)
    with serve_registry() as registry:
        name = f"{registry.host}/tasks/one:1"
        digest = registry.add("tasks/one:1", busybox, {"data": b"pulled"})
        registry.add("tasks/arm:1", busybox, {}, "arm64")
        async with DockerBackend(CONFIG) as docker:
            async with docker.session_for(replace(TASK, image=name)) as session:
                assert (await session.exec("busybox cat /data")).stdout == "pulled"
            assert docker.images()[name] == digest and docker._sessions is not None
            [pinned] = docker._sessions._ids.values()
            assert pinned.what == f"{registry.host}/tasks/one@{digest}"  # what another engine pulls
        await remove(store, name)
        assert (await makers.provide(name, 60)).digests == (digest,)
        assert sum(path.endswith("/one/manifests/1") for path in registry.pulled) <= 1
        with pytest.raises(ImageUnusable, match=r"arm:1 is for arm64, and the engine at \S+ runs amd64"):
            await makers.provide(f"{registry.host}/tasks/arm:1", 60)
        with pytest.raises(ImageUnusable, match=r"has no image \S+/none:1, which a task names.*can't pull.*not found"):
            await makers.provide(f"{registry.host}/tasks/none:1", 60)
        assert await makers.provide(f"{registry.host}/tasks/one@{digest}", 60)


async def fill(store: ImageStore, registry_images: int, budget_bytes: int, busybox: Path) -> list[str]:
    """Pull images of 100 kB each and of one base; the names of those that are left."""
    store._budget_bytes = budget_bytes
    makers = TaskImages(store._engine, "", "amd64", store)
    with serve_registry() as registry:
        for number in range(registry_images):
            registry.add(f"many/{number}:1", busybox, {"data": f"{number:06}".encode() * 20_000})
            await makers.provide(f"{registry.host}/many/{number}:1", 60)
        return [one.name.removeprefix(f"{registry.host}/many/") for one in await store.listed()]


async def test_what_was_used_longest_ago_is_removed_beyond_the_budget(
    store: ImageStore, busybox: Path, tmp_path: Path
) -> None:
    store._num_kept = 1
    size = busybox.stat().st_size * 2 + 120_000
    left = await fill(store, 6, 3 * size + size // 2, busybox)
    assert left == ["3:1", "4:1", "5:1"]
    await store.touch((await store.listed())[0].image.image_id)
    assert [one.name[-3:] for one in await store.listed()] == ["4:1", "5:1", "3:1"]
    [base] = [one for one in await store.listed() if one.name.endswith("/3:1")]
    folder = tmp_path / "on_it"
    folder.mkdir()
    (folder / "Dockerfile").write_text(f"FROM {base.image.image_id}\nCOPY Dockerfile /x\n")
    makers = TaskImages(store._engine, "", "amd64", store)
    store._budget_bytes = None
    await makers.provide(BuildContext(str(folder)), 60)
    [found] = [one for one in await store.listed() if one.image.image_id == base.image.image_id]
    assert found.in_use  # the base of another
    assert await store.evict(0) >= 4
    assert [one for one in await store.listed() if "many/" in one.name] == []


@pytest.mark.hostile
async def test_sixty_images_with_a_budget_for_fifteen_leave_nothing_behind(store: ImageStore, busybox: Path) -> None:
    size = busybox.stat().st_size * 2 + 120_000
    left = await fill(store, 60, 15 * size, busybox)
    assert 13 <= len(left) <= 15 and left[-1] == "59:1"
    await store.evict(0)
    after = await store._engine.call_long("list", lambda client: client.images(all=True), 60)
    assert [name for row in after for name in row["RepoTags"] or row["RepoDigests"] or () if "/many/" in name] == []


async def test_the_hash_of_a_context_is_of_what_is_built_and_its_bases_are_found(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        "ARG V=12\nFROM --platform=linux/amd64 debian:${V} AS one\nFROM one\n"
        "COPY --from=uv:1 /a /b\nCOPY --from=0 x y\n"
    )
    (tmp_path / "kept").write_text("1")
    (tmp_path / "left").write_text("1")
    (tmp_path / ".dockerignore").write_text("left\n")
    context = BuildContext(str(tmp_path))
    assert context.bases() == ("debian:12", "uv:1")
    key = context.key(["a"])
    (tmp_path / "left").write_text("2")
    assert context.key(["a"]) == key != context.key(["b"])
    (tmp_path / "kept").chmod(0o755)
    assert context.key(["a"]) != key


async def test_a_name_has_one_tag_of_ours() -> None:
    assert marker_of("busybox") == marker_of("busybox:latest") == "agentgym-pulled/busybox:latest"
    assert marker_of("127.0.0.1:5000/a/b:1") == "agentgym-pulled/127.0.0.1_5000/a/b:1"
    assert marker_of("a/b@sha256:12") == "agentgym-pulled/a/b:sha256-12"


def request(name: str, memory_mib: int = 128, cpus: float = 1.0) -> Request:
    return Request(name, "task", memory_mib, name, cpus)


async def test_containers_wait_in_turn_for_memory_and_cores() -> None:
    room, num_short = Room(300, 2.0, 2.0), [0]

    def short() -> None:
        num_short[0] += 1

    first = await room.take(request("a"), short)
    second = await room.take(request("b", cpus=0.5), short)
    large = asyncio.create_task(room.take(request("c", 256, 64.0), short))
    await settle()
    small = asyncio.create_task(room.take(request("d", 16, 0.1), short))  # it would fit, but its turn has not come
    await settle()
    assert not large.done() and not small.done() and num_short[0]
    with pytest.raises(ImageUnusable, match="asks for 301 MiB of memory, and the engine has 300"):
        await room.take(request("e", 301), short)
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    for share in (first, second, await small):
        room.free(share)
    assert (await room.take(request("c", 128, 64.0), short)).cpus == 2.0


async def test_images_are_made_ahead_in_order_two_at_a_time_and_no_more_than_are_used() -> None:
    began: list[str] = []
    gates: dict[str, asyncio.Event] = {}

    async def provide(wanted: Request) -> Machine:
        began.append(wanted.name)
        await gates.setdefault(wanted.name, asyncio.Event()).wait()
        if wanted.name == "b":
            raise InfraError("it fails, and others go on")
        return Machine(request=wanted, image=Image(image_id="", layers=(), digests=()), tree="")

    ahead = Ahead(provide, 3)
    try:
        ahead.expect(request(name) for name in "abcdef")
        ahead.expect([request("a")])
        await settle()
        assert began == ["a", "b"]
        for name in "ab":
            gates[name].set()
        await settle()
        assert began == ["a", "b", "c"]  # three that nobody has used yet
        gates["c"].set()
        ahead.used(request("a"))
        ahead.used(request("x"))  # out of order
        await settle()
        assert began == ["a", "b", "c", "d", "e"]
    finally:
        await ahead.close()


class Full(Engine):
    """An engine whose disk is full."""

    async def image(self, reference: str) -> Image | None:
        return None

    async def call_long(self, what: str, function: Callable[..., T], timeout_s: float) -> T:
        def say(_: object) -> T:
            raise APIError(f"{what}: write /layer.tar: no space left on device")

        return await super().call_long(what, say, timeout_s)


async def test_a_full_disk_is_the_engine_s_trouble_and_not_the_image_s(
    store: ImageStore, busybox: Path, tmp_path: Path
) -> None:
    usual = store._engine
    full = Full(usual._client, usual.url, 30.0, usual._endpoint, None)
    makers = TaskImages(full, "", "amd64", store)
    for what in ("busybox:none", BuildContext(str(context_of(tmp_path / "task", busybox)))):
        with pytest.raises(EngineDiskFull, match="no space left"):
            await makers.provide(what, 60)


@pytest.mark.hostile
async def test_an_image_that_is_evicted_before_its_session_begins_is_made_again(
    store: ImageStore, busybox: Path, tmp_path: Path
) -> None:
    folder = context_of(tmp_path / "task", busybox, f"LABEL only={tmp_path}\n")
    spec = replace(TASK, context=str(folder))
    async with DockerBackend(CONFIG) as docker:
        for _ in range(2):
            async with docker.session_for(spec) as session:
                assert (await session.exec("busybox true")).exit_code == 0
            await until_removed(store, str(folder))


async def until_removed(store: ImageStore, name: str) -> None:
    """As another run does whose budget is small, once no container uses it."""
    usual = ImageStore(store._engine)
    async with asyncio.timeout(60):
        while found := [one for one in await usual.listed() if one.name == name]:
            await asyncio.gather(*(usual._remove(one) for one in found if not one.in_use))


@pytest.mark.hostile
async def test_the_command_lists_and_builds_and_names_what_failed(
    store: ImageStore, busybox: Path, tmp_path: Path
) -> None:
    folder = context_of(tmp_path / "task", busybox, f"LABEL only={tmp_path}\n")
    words = ["sandbox", "images", "--json", "--build", str(folder), str(tmp_path / "none:1")]
    program = "import sys; from agentgym.cli.main import main; sys.exit(main())"
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, *words], capture_output=True)
    said = json.loads(done.stdout)
    [found] = [one for one in said["images"] if one["name"] == str(folder)]
    assert done.returncode == 1 and found["used"] and said["failed"] == [str(tmp_path / "none:1")]
    await remove(store, str(folder))
