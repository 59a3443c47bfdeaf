"""The plugin `bfcl`: two parts of the Berkeley Function-Calling Leaderboard."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.bfcl.environment import BfclEnvironment
from agentgym_envs.bfcl.single_turn import BfclSingleTurnEnvironment


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"bfcl": BfclEnvironment, "bfcl_single_turn": BfclSingleTurnEnvironment}
