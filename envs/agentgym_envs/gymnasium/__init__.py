"""The plugin `gymnasium`: environments of Gymnasium with few actions or with text, played in words."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.gymnasium.environment import GymnasiumEnvironment


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"gymnasium": GymnasiumEnvironment}
