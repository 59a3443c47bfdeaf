"""What preloading saves: the time of a call that imports a package, with and without `sandbox.options.preload`.

    agentgym sandbox build --packages numpy==2.3.1
    python benchmarks/preload.py numpy==2.3.1 numpy
    python benchmarks/preload.py pandas==2.3.3 pandas --calls 60

The two sandboxes take turns in rounds. A busy machine is measured too, with a warning.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from agentgym.hooks import PluginRegistry
from agentgym.sandbox import RunStatus, SandboxBackend, SandboxOptions
from agentgym.types import Json
from agentgym_sandboxes.audit.machine import measure_load
from agentgym_sandboxes.audit.timing import Plan, Timing, Way, measure


async def compare(packages: Sequence[str], module: str, calls: int) -> list[Timing]:
    """A program that imports the module, and one that does nothing, in both sandboxes."""
    make = PluginRegistry.discover().sandbox("docker")
    named: list[Json] = list(packages)
    ways = []
    async with AsyncExitStack() as stack:
        for name, preload in (("imported", []), ("preloaded", [module])):
            options: SandboxOptions = {"packages": named, "preload": preload, "pool_size": 1, "spares": 0}
            sandbox = await stack.enter_async_context(make(options))
            ways.append(_way(f"{name}: import {module}", sandbox, f"import {module}"))
            ways.append(_way(f"{name}: pass", sandbox, "pass"))
        return await measure(ways, Plan(calls=calls, warm_up=5), lambda text: print(text, file=sys.stderr))


def _way(name: str, sandbox: SandboxBackend, code: str) -> Way:
    async def call() -> None:
        result = await sandbox.run(code)
        assert result.status is RunStatus.OK, result.stderr

    return Way(name=name, call=call, at_once=False)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("module")
    parser.add_argument("--calls", type=int, default=200)
    arguments = parser.parse_args()
    load = await measure_load()
    if not load.is_idle:
        print(f"The machine is not idle ({load}): these figures are not reliable.", file=sys.stderr)
    for timing in await compare(arguments.packages, arguments.module, arguments.calls):
        print(f"{timing.name:32} p50 {timing.p50_ms:7.2f} ms   p95 {timing.p95_ms:7.2f} ms")


if __name__ == "__main__":
    asyncio.run(main())
