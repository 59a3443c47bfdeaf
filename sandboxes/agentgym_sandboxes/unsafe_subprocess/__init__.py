"""Sandbox `unsafe_subprocess`: a plain process of ours that holds nothing back; only for code that is trusted."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym import hookimpl
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin


@hookimpl
def sandboxes() -> Mapping[str, SandboxPlugin]:
    config = "agentgym_sandboxes.unsafe_subprocess.config:UnsafeSubprocessConfig"
    return {"unsafe_subprocess": SandboxPlugin(create=_create, config=config)}


def _create(options: SandboxOptions) -> SandboxBackend:
    from agentgym.config import build
    from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
    from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

    return UnsafeSubprocessBackend(build(UnsafeSubprocessConfig, options, "options of sandbox 'unsafe_subprocess'"))
