"""The plugin `tool_use`: small worlds that an agent can only know and change by their tools."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.tool_use.environment import ToolUse


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"tool_use": ToolUse}
