"""The plugin `tau_bench`: both benchmarks of that name, customers and the policy that an agent serves them by."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.hooks import EnvironmentFactory, hookimpl
from agentgym_envs.tau_bench.environment import TauBenchEnvironment
from agentgym_envs.tau_bench.tau2_environment import Tau2BenchEnvironment


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"tau_bench": TauBenchEnvironment, "tau2_bench": Tau2BenchEnvironment}
