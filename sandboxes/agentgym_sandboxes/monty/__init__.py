"""Sandbox `monty`: the embedded pydantic-monty interpreter; no engine, no CPython, for tasks that allow it."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym import hookimpl
from agentgym.hooks import SandboxFactory
from agentgym.sandbox import SandboxBackend, SandboxOptions


@hookimpl
def sandboxes() -> Mapping[str, SandboxFactory]:
    return {"monty": _create}


def _create(options: SandboxOptions) -> SandboxBackend:
    from agentgym_sandboxes.monty.backend import MontyBackend
    from agentgym_sandboxes.monty.config import MontyConfig

    return MontyBackend(MontyConfig.from_options(options))
