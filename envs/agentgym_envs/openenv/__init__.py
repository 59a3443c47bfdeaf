"""The plugin `openenv`: servers of OpenEnv, by URL, from a folder or from an image."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.openenv.environment import OpenEnv


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"openenv": OpenEnv}
