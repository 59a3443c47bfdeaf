"""The plugin of the `code_exec` environment."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.code_exec.environment import CodeExec


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"code_exec": CodeExec}
