"""The plugin `skyrl_gym`: environments that were written for SkyRL's library skyrl-gym, unchanged."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.skyrl_gym.environment import SkyRLGym


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"skyrl_gym": SkyRLGym}
