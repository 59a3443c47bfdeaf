"""The plugin `swe`: repositories with a failing test to make pass, as rows of SWE-bench and of what follows it."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.swe.environment import Swe


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"swe": Swe}
