"""Sandbox `bubblewrap`: namespaces, a control group and a system call filter for every call, without an engine."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym import hookimpl
from agentgym.hooks import SandboxFactory
from agentgym.sandbox import SandboxBackend, SandboxOptions


@hookimpl
def sandboxes() -> Mapping[str, SandboxFactory]:
    return {"bubblewrap": _create}


def _create(options: SandboxOptions) -> SandboxBackend:
    from agentgym_sandboxes.bubblewrap.backend import BubblewrapBackend
    from agentgym_sandboxes.bubblewrap.config import BubblewrapConfig

    return BubblewrapBackend(BubblewrapConfig.from_options(options))
