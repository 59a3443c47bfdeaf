"""The plugin `math`: arithmetic and word problems with verified answers."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.math.environment import MathEnvironment


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"math": MathEnvironment}
