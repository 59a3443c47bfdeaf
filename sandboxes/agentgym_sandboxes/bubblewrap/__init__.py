"""Sandbox `bubblewrap`: namespaces, a control group and a system call filter for every call, without an engine."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym import hookimpl
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin


@hookimpl
def sandboxes() -> Mapping[str, SandboxPlugin]:
    plugin = SandboxPlugin(
        create=_create,
        config="agentgym_sandboxes.bubblewrap.config:BubblewrapConfig",
        auto_rank=20,
        needs=("pyseccomp>=0.1.2",),
        setup="Install bubblewrap; `agentgym sandbox doctor` reports what is missing.",
    )
    return {"bubblewrap": plugin}


def _create(options: SandboxOptions) -> SandboxBackend:
    from agentgym.config import build
    from agentgym_sandboxes.bubblewrap.backend import BubblewrapBackend
    from agentgym_sandboxes.bubblewrap.config import BubblewrapConfig

    return BubblewrapBackend(build(BubblewrapConfig, options, "options of sandbox 'bubblewrap'"))
