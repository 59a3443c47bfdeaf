"""The plugin `textworld`: text adventures that TextWorld makes from a seed."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.textworld.environment import TextWorld


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"textworld": TextWorld}
