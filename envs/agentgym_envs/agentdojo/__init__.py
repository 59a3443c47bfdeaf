"""The plugin `agentdojo`: assistants whose tools return data in which somebody else has written instructions."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.agentdojo.environment import AgentDojoEnvironment


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"agentdojo": AgentDojoEnvironment}
