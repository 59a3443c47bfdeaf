"""Counts which graders the reward hacks fool: graders as people write them, and that of a sandbox.

    python benchmarks/reward_hacks.py                   the table, measured in Docker
    python benchmarks/reward_hacks.py --hacks           also each hack, with the graders that it fools
    python benchmarks/reward_hacks.py --json FILE       also everything as JSON

The naive graders run inside Docker, so that only their verdicts are at risk. Exit code 1: a hack fooled ours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "sandboxes"))

from naive_graders import GRADERS, Grader

from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Limits, SandboxBackend
from agentgym_sandboxes.audit.findings import Outcome
from agentgym_sandboxes.audit.hacks.hack import Hack, attack
from agentgym_sandboxes.audit.suite import HACKS

Fooled = Mapping[str, Mapping[str, bool]]  # by hack, by grader; without the graders that can't take its target


async def count(sandbox: SandboxBackend, at_once: int, wall_s: float) -> tuple[Fooled, list[str]]:
    """Which hack fools which grader, and the hacks that pass in the sandbox itself."""
    turns = asyncio.Semaphore(at_once)
    done = 0

    async def one(hack: Hack, grader: Grader | None) -> bool | None:
        nonlocal done
        async with turns:
            if grader is None:
                judgement = await attack(sandbox, hack)
                fooled: bool | None = judgement.outcome not in (Outcome.CONTAINED, Outcome.UNSUPPORTED)
                if fooled:
                    print(f"\nPASSED {hack.name}: {judgement.detail}", file=sys.stderr)
            else:
                limits = Limits(wall_s=min(wall_s, 2.5) if hack.limits.wall_s < 1 else wall_s, memory_mib=256)
                fooled = await grader.fooled_by(sandbox, hack.target, hack.code, limits)
        done += 1
        if sys.stderr.isatty():
            print(f"\r{done} of {len(HACKS) * (len(GRADERS) + 1)}", end="", file=sys.stderr, flush=True)
        return fooled

    async with asyncio.TaskGroup() as group:
        tasks = {
            (hack.name, grader.name if grader else ""): group.create_task(one(hack, grader))
            for hack in HACKS
            for grader in (*GRADERS, None)
        }
    results = {key: task.result() for key, task in tasks.items()}
    fooled = {
        hack.name: {g.name: bool(results[hack.name, g.name]) for g in GRADERS if results[hack.name, g.name] is not None}
        for hack in HACKS
    }  # fmt: skip
    return fooled, [hack.name for hack in HACKS if results[hack.name, ""]]


def table(fooled: Fooled, passed: list[str], name: str) -> str:
    """Markdown: a line for each grader, with the number of hacks that it accepted."""
    lines = ["| grader | hacks that fooled it | of |", "|---|---|---|"]
    for grader in GRADERS:
        tried = [row[grader.name] for row in fooled.values() if grader.name in row]
        lines.append(f"| {grader.name} | {sum(tried)} | {len(tried)} |")
    return "\n".join([*lines, f"| **ours ({name})** | {len(passed)} | {len(fooled)} |"])


async def main(arguments: argparse.Namespace) -> int:
    async with PluginRegistry.discover().sandbox("docker")({}) as sandbox:
        fooled, passed = await count(sandbox, arguments.at_once, arguments.wall_s)
    print(table(fooled, passed, "docker"))
    if arguments.hacks:
        for hack in HACKS:
            names = [name for name, yes in fooled[hack.name].items() if yes]
            print(f"\n{hack.name}: {hack.tries}\n    fools {', '.join(names) or 'NONE'}")
    if arguments.json:
        document = json.dumps({"fooled": fooled, "passed": passed}, indent=1)
        await asyncio.to_thread(Path(arguments.json).write_text, document, "utf-8")
    idle = [name for name, row in fooled.items() if not any(row.values())]
    if idle:
        print(f"fools no grader: {', '.join(idle)}", file=sys.stderr)
    return 1 if passed or idle else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=4, help="grades at a time (4)")
    parser.add_argument("--wall-s", type=float, default=5.0, help="for one naive grade (5)")
    parser.add_argument("--hacks", action="store_true", help="each hack with the graders that it fools")
    parser.add_argument("--json", help="a file for everything")
    sys.exit(asyncio.run(main(parser.parse_args())))
