"""The plugin `bfcl`: the multi-turn part of the Berkeley Function-Calling Leaderboard."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.bfcl.environment import BfclEnvironment


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"bfcl": BfclEnvironment}
