"""Our sandboxes keep the promises of `agentgym.sandbox`."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import ordinary_user
import pytest
from process_backend import ProcessBackend
from served import served

from agentgym.sandbox import SandboxBackend, SandboxUnavailable
from agentgym.testing import GradingConformance, SandboxConformance, SessionConformance
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.monty.backend import MontyBackend
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig
from tests.sandboxes.conftest import do_without

NUMBERS = itertools.count()


class Ours(SandboxConformance, GradingConformance):
    """The promises, by a backend of each class's own."""


class TestDocker(Ours, SessionConformance):
    pytestmark = pytest.mark.docker

    @asynccontextmanager
    async def made(self) -> AsyncIterator[SandboxBackend]:
        try:
            await self.make().probe()
        except SandboxUnavailable as error:
            do_without(str(error))
        yield self.make()

    def make(self) -> SandboxBackend:
        return DockerBackend(DockerConfig(pool_size=1, reap_every_s=1e6))


class TestMonty(Ours):
    def make(self) -> SandboxBackend:
        return MontyBackend()


class TestUnsafeSubprocess(Ours):
    def make(self) -> SandboxBackend:
        return UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True))


class TestGradedStrictly(GradingConformance):
    """By the public grader, in a sandbox that a third party could have written."""

    def make(self) -> ProcessBackend:
        return ProcessBackend()


@pytest.mark.xdist_group("bubblewrap")
class TestBubblewrap(Ours):
    """In a process of an ordinary user, as everywhere in these tests."""

    @asynccontextmanager
    async def made(self) -> AsyncIterator[SandboxBackend]:
        if shutil.which("bwrap") is None:
            do_without("there is no bwrap")
        async with AsyncExitStack() as stack:
            try:
                groups = ordinary_user.control_groups(f"agentgym-test-{os.getpid()}-{next(NUMBERS)}")
                path, folder = stack.enter_context(groups)
            except OSError as error:
                do_without(f"no control group can be made: {error}")
            yield await stack.enter_async_context(served({"cgroup": path}, folder))
