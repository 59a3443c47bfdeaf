"""The plugin `verifiers`: environment packages that were written for the library verifiers, unchanged."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.verifiers.environment import Verifiers


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"verifiers": Verifiers}
