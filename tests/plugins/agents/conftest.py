"""The contexts of agents without an episode, and what is left of processes."""

from __future__ import annotations

import importlib.util
import os
from functools import partial
from pathlib import Path

import pytest

from agentgym.sandbox import SandboxUnavailable
from agentgym.testing import FakeAgentContext, FakeSession

collect_ignore_glob = [] if importlib.util.find_spec("smolagents") else ["test_shipped.py"]


@pytest.fixture
def context():
    return partial(FakeAgentContext, messages=({"role": "user", "content": "say {yes}"},))


@pytest.fixture
async def engine():
    """Needs an engine with the image: skips without one, or fails where the environment requires one."""
    from agentgym_sandboxes.docker.backend import DockerBackend

    try:
        await DockerBackend().probe()
    except SandboxUnavailable as error:
        if os.environ.get("AGENTGYM_REQUIRE_DOCKER") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def session():
    return FakeSession(lambda command, stdin: stdin.upper())


@pytest.fixture
def is_gone():
    """Whether a process has ended. A zombie has: whoever adopted it has not waited for it yet."""

    def ask(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    return ask
