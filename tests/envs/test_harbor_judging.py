"""Which failures of a verdict's container are the agent's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentgym.sandbox import ImageUnusable, SandboxUnavailable
from agentgym.testing.fakes import FakeSandbox
from agentgym.types import SandboxSpec
from agentgym_envs.harbor.judging import _opened


class Failing(FakeSandbox):
    error: Exception

    @asynccontextmanager
    async def session_for(self, spec: SandboxSpec) -> AsyncIterator[Any]:
        raise self.error
        yield


async def test_a_busy_engine_is_no_agents_fault_but_files_that_no_container_starts_from_are() -> None:
    sandbox = Failing()
    sandbox.error = ImageUnusable("no session starts in it")
    async with _opened(sandbox, SandboxSpec(session=True)) as machine:
        assert machine is None
    sandbox.error = SandboxUnavailable("no session came free within 120 s")
    with pytest.raises(SandboxUnavailable, match="came free"):
        async with _opened(sandbox, SandboxSpec(session=True)):
            pass
