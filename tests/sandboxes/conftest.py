"""Sandboxes for the tests: one of each backend for the whole session."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import ordinary_user
import pytest
import pytest_asyncio
from images import static_busybox
from served import ServedBackend, served

from agentgym.sandbox import SandboxBackend, SandboxUnavailable, Session
from agentgym_sandboxes.agent import files
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.monty.backend import MontyBackend
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig
from tests.sandboxes.engines import need_private_engines, save_image

REQUIRED = "AGENTGYM_REQUIRE_DOCKER"


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"engine", "archive"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.docker)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine() -> str:
    """Needs an engine with the image: skips without one, or fails where the environment requires one."""
    try:
        return (await DockerBackend().probe()).detail
    except SandboxUnavailable as error:
        do_without(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def docker(engine: str) -> AsyncIterator[DockerBackend]:
    # its sweeps would remove what other tests look for
    async with DockerBackend(DockerConfig(pool_size=1, reap_every_s=1e6)) as backend:
        yield backend


@pytest.fixture(scope="session")
def busybox(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A static one, to make images of."""
    return static_busybox(tmp_path_factory.mktemp("busybox")) or do_without("there is no static busybox")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def monty() -> AsyncIterator[MontyBackend]:
    async with MontyBackend() as backend:
        yield backend


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def bubblewrap() -> AsyncIterator[ServedBackend]:
    """Needs bubblewrap and a control group, and both Pythons where the tests are root's."""
    if shutil.which("bwrap") is None:
        do_without("there is no bwrap")
    try:
        with ordinary_user.control_groups(f"agentgym-test-{os.getpid()}") as (path, folder):
            async with served({"cgroup": path}, folder) as backend:
                try:
                    await backend.start()
                except SandboxUnavailable as error:
                    do_without(str(error))
                yield backend
    except OSError as error:
        do_without(f"no control group can be made: {error}")


def do_without(reason: str) -> NoReturn:
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    pytest.skip(reason)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def unsafe_subprocess() -> AsyncIterator[UnsafeSubprocessBackend]:
    """For the tests' own snippets only: it holds nothing back."""
    async with UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True)) as backend:
        yield backend


BACKENDS = [pytest.param("docker", marks=pytest.mark.docker), "monty", "bubblewrap", "unsafe_subprocess"]


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> SandboxBackend:
    """Each backend in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session", params=[BACKENDS[0], "bubblewrap"])
def containing(request: pytest.FixtureRequest) -> SandboxBackend:
    """Each that contains any program."""
    return request.getfixturevalue(request.param)


SESSION_BACKENDS = BACKENDS[:1]


@pytest.fixture(scope="session", params=SESSION_BACKENDS)
def session_backend(request: pytest.FixtureRequest) -> SandboxBackend:
    return request.getfixturevalue(request.param)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def leased(session_backend: SandboxBackend) -> AsyncIterator[Session]:
    async with session_backend.session() as session:
        yield session


@pytest_asyncio.fixture(loop_scope="session")
async def session(leased: Session) -> Session:
    """As new: the same for all tests, reset before each."""
    await leased.reset()
    return leased


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image, for engines of a test's own."""
    need_private_engines()
    path = tmp_path_factory.mktemp("image") / "image.tar"
    save_image(path)
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A session's work folder."""
    return tmp_path / "work"


@pytest.fixture
def root(work: Path) -> Iterator[int]:
    """Its descriptor."""
    fd = files.open_root(str(work))
    yield fd
    os.close(fd)
