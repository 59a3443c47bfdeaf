"""The plugin `tau_bench`: customers of a shop and of an airline, and the policy that an agent serves them by."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.tau_bench.environment import TauBenchEnvironment


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"tau_bench": TauBenchEnvironment}
