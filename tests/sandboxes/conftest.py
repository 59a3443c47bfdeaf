"""Sandboxes for the tests: one of each backend for the whole session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentgym.sandbox import SandboxBackend, SandboxUnavailable
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.monty.backend import MontyBackend

REQUIRED = "AGENTGYM_REQUIRE_DOCKER"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def engine() -> str:
    """Needs an engine with the image: skips without one, or fails where the environment requires one."""
    try:
        return (await DockerBackend().probe()).detail
    except SandboxUnavailable as error:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, but {error}")
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def docker(engine: str) -> AsyncIterator[DockerBackend]:
    async with DockerBackend(DockerConfig(pool_size=1)) as backend:
        yield backend


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def monty() -> AsyncIterator[MontyBackend]:
    async with MontyBackend() as backend:
        yield backend


@pytest.fixture(scope="session", params=[pytest.param("docker", marks=pytest.mark.docker), "monty"])
def backend(request: pytest.FixtureRequest) -> SandboxBackend:
    """Each backend in turn."""
    return request.getfixturevalue(request.param)
