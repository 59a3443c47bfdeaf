"""Measures every sandbox that is available here, and raw baselines in the same run, against stated targets.

    python benchmarks/sandbox.py                 measures; writes benchmarks/measured/sandbox.json
    python benchmarks/sandbox.py --markdown      also prints the tables of docs/results.md
    python benchmarks/sandbox.py --quick --anyway --out /tmp/sandbox.json

All methods of running the same program take turns in rounds, and every answer is checked. It refuses to start on a
machine that is not idle; `--anyway` measures there too, but the figures are not claimed. Exit code 0: all targets
are met; 1: one is missed; 3: nothing can be claimed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path

from sandbox_baselines import Baselines
from sandbox_report import Results, tables

from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Capabilities, SandboxBackend, SandboxUnavailable
from agentgym_sandboxes.audit.bench import (
    QUICK,
    BenchPlan,
    Growth,
    backend_ways,
    measure_growth,
    measure_sessions,
    measure_starts,
)
from agentgym_sandboxes.audit.machine import describe_machine, measure_load
from agentgym_sandboxes.audit.timing import Timing, Way, measure

OUT = Path(__file__).parent / "measured" / "sandbox.json"
LONG = BenchPlan(episodes=1000, starts=7, load_s=5.0)
SANDBOXES = ("docker", "bubblewrap", "monty")
NOT_CLAIMED = 3


async def run(plan: BenchPlan, names: Sequence[str], image: str | None) -> Results:
    registry = PluginRegistry.discover()
    before = await measure_load(plan.load_s)
    found: dict[str, Capabilities] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            backend = registry.sandbox(name)({})
            try:
                found[name] = await backend.probe()
            finally:
                await backend.close()
        except (SandboxUnavailable, UserError) as error:
            left_out[name] = str(error)
            say(f"without {name}: {error}")
    timings: list[Timing] = []
    for name in found:
        starts = await measure_starts(lambda name=name: registry.sandbox(name)({}), plan.starts, say)
        timings += _named(name, starts)
    growth: dict[str, Growth] = {}
    async with AsyncExitStack() as stack:
        backends = {n: await stack.enter_async_context(registry.sandbox(n)({})) for n in found}
        baselines = await stack.enter_async_context(Baselines(image or _image_of(backends), plan.timing.at_once))
        ways = [replace(w, name=f"{n}: {w.name}") for n, b in backends.items() for w in backend_ways(b)]
        all_ways: list[Way] = [*ways, *baselines.ways()]
        timings += await measure(all_ways, plan.timing, say)
        for name, backend in backends.items():
            say(f"{name}: sessions and growth")
            if found[name].sessions:
                timings += _named(name, await measure_sessions(backend, plan, say))
            growth[name] = await measure_growth(backend, found[name], plan.episodes, say)
    return Results(
        machine=describe_machine(),
        load=(before, await measure_load(plan.load_s)),
        sandboxes=found,
        left_out=left_out,
        timings=tuple(timings),
        growth=growth,
        plan=plan,
    )


def _named(sandbox: str, timings: Sequence[Timing]) -> list[Timing]:
    return [replace(timing, name=f"{sandbox}: {timing.name}") for timing in timings]


def _image_of(backends: dict[str, SandboxBackend]) -> str:
    """The baselines use the sandbox's own image."""
    if "docker" not in backends:
        raise SystemExit("the baselines need a Docker engine and the image: `agentgym sandbox build`")
    from agentgym_sandboxes.docker.image import RECIPE

    return RECIPE.reference


def say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandbox", nargs="+", default=list(SANDBOXES), help="default: %(default)s")
    parser.add_argument("--image", help="for the baselines (default: that of the Docker sandbox)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--anyway", action="store_true", help="measure on a busy machine too; nothing is claimed")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--out", type=Path, help=f"default: {OUT}, when the figures can be claimed")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else LONG
    idle = asyncio.run(measure_load(plan.load_s))
    if not idle.is_idle and not arguments.anyway:
        print(f"the machine is not idle ({idle}): figures could not be claimed; --anyway measures nevertheless")
        return NOT_CLAIMED
    results = asyncio.run(run(plan, arguments.sandbox, arguments.image))
    targets = results.targets()
    for target in targets:
        print(f"{('PASS' if target.met else 'FAIL') if results.claimed else 'NOT CLAIMED'}  {target}")
    if arguments.markdown:
        print(f"\n{tables(results)}")
    out = arguments.out or (OUT if results.claimed and not arguments.quick else None)
    if out is not None:
        met = {target.what: asdict(target) | {"met": target.met} for target in targets}
        body = {**asdict(results), "claimed": results.claimed, "targets": met}
        out.write_text(json.dumps(body, indent=1) + "\n")
        print(f"wrote {out}")
    if not results.claimed:
        print(f"nothing is claimed: {results.load[0]} before, {results.load[1]} after")
        return NOT_CLAIMED
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
