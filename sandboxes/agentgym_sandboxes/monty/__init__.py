"""Sandbox `monty`: the embedded pydantic-monty interpreter; no engine, no CPython, for tasks that allow it."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym import hookimpl
from agentgym.sandbox import SandboxBackend, SandboxOptions, SandboxPlugin


@hookimpl
def sandboxes() -> Mapping[str, SandboxPlugin]:
    plugin = SandboxPlugin(
        create=_create,
        config="agentgym_sandboxes.monty.config:MontyConfig",
        auto_rank=100,
        interpreter=True,
        needs=("pydantic-monty==1.4.0",),
        setup="`pip install pydantic-monty==1.4.0 'pyseccomp>=0.1.2'`",
    )
    return {"monty": plugin}


def _create(options: SandboxOptions) -> SandboxBackend:
    from agentgym.config import build
    from agentgym_sandboxes.monty.backend import MontyBackend
    from agentgym_sandboxes.monty.config import MontyConfig

    return MontyBackend(build(MontyConfig, options, "options of sandbox 'monty'"))
