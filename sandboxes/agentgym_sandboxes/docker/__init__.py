"""Sandbox `docker`: warm, hardened containers with an agent of ours inside."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym import hookimpl
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin


@hookimpl
def sandboxes() -> Mapping[str, SandboxPlugin]:
    plugin = SandboxPlugin(
        create=_create,
        config="agentgym_sandboxes.docker.config:DockerConfig",
        auto_rank=10,
        contents=("image", "packages", "volumes"),
        needs=("docker>=7.1", "h11>=0.16"),
        setup="Start Docker (`agentgym sandbox doctor` reports how), then `agentgym sandbox build`.",
    )
    return {"docker": plugin}


def _create(options: SandboxOptions) -> SandboxBackend:
    from agentgym.config import build
    from agentgym_sandboxes.docker.backend import DockerBackend
    from agentgym_sandboxes.docker.config import DockerConfig

    return DockerBackend(build(DockerConfig, options, "options of sandbox 'docker'"))
