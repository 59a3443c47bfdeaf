"""Sandbox `docker`: warm, hardened containers with an agent of ours inside."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym import hookimpl
from agentgym.hooks import SandboxFactory
from agentgym.sandbox import SandboxBackend, SandboxOptions


@hookimpl
def sandboxes() -> Mapping[str, SandboxFactory]:
    return {"docker": _create}


def _create(options: SandboxOptions) -> SandboxBackend:
    from agentgym_sandboxes.docker.backend import DockerBackend
    from agentgym_sandboxes.docker.config import DockerConfig

    return DockerBackend(DockerConfig.from_options(options))
