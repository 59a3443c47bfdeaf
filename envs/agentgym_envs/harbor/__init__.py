"""The plugin `harbor`: task folders with a machine of their own, as Harbor and Terminal-Bench have them."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.harbor.environment import Harbor


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"harbor": Harbor}
