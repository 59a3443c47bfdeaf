"""The plugin `reasoning_gym`: the generators of the package reasoning-gym as one environment."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.reasoning_gym.environment import ReasoningGym


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"reasoning_gym": ReasoningGym}
