"""Fuzzes the code that reads untrusted bytes: `python benchmarks/fuzz_sandbox.py --minutes 60 --seed 7`.

Each case has its own seed. A finding is written to a file, and `--replay FILE` reproduces it; the exit code is then 1.
`--docker` adds the targets that need a Docker engine: the agent in a container, and grades compared with a slow
computation here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "sandboxes"))

from fuzz import (
    agent_targets,
    docker_targets,
    file_targets,
    frame_targets,
    network_targets,
    running,
    value_targets,
    verdict_targets,
)
from fuzz.running import Finding, Report, Target

MEMORY_BYTES = 8 << 30  # a case that needs more is a finding


def main() -> int:
    arguments = _arguments()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    return asyncio.run(_fuzz(arguments))


async def _fuzz(arguments: argparse.Namespace) -> int:
    async with contextlib.AsyncExitStack() as stack:
        modules = (frame_targets, value_targets, verdict_targets, file_targets, network_targets, agent_targets)
        targets = [target for module in modules for target in module.TARGETS]
        targets.append(await stack.enter_async_context(network_targets.proxy_target()))
        if arguments.docker:
            targets += await stack.enter_async_context(docker_targets.docker_targets())
        if arguments.replay is not None:
            return await _replay(targets, Finding.read(arguments.replay))
        if arguments.only:
            targets = [target for target in targets if target.name in arguments.only]
        print(f"{len(targets)} targets, {arguments.minutes:g} minutes, seed {arguments.seed}", flush=True)
        reports = await running.run(targets, arguments.seed, seconds=60 * arguments.minutes)
    return _report(reports, arguments.findings)


async def _replay(targets: list[Target], known: Finding) -> int:
    target = next(target for target in targets if target.name == known.target)
    finding = await running.run_case(target, known.seed)
    print(finding.error if finding is not None else "this case no longer fails")
    return 0 if finding is None else 1


def _report(reports: list[Report], folder: Path) -> int:
    print(f"{'target':<28}{'cases':>12}{'cases/s':>10}{'findings':>10}")
    for report in reports:
        rate = report.num_cases / max(report.seconds, 1e-9)
        print(f"{report.target:<28}{report.num_cases:>12,}{rate:>10,.0f}{len(report.findings):>10}")
    findings = [finding for report in reports for finding in report.findings]
    num_cases, seconds = sum(r.num_cases for r in reports), sum(r.seconds for r in reports)
    rate = num_cases / max(seconds, 1e-9)
    print(f"{'all':<28}{num_cases:>12,}{rate:>10,.0f}{len(findings):>10}")
    for finding in findings:
        print(f"\n{finding.write(folder)}: {finding.error.splitlines()[-1]}")
    return 1 if findings else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", metavar="TARGET", help="only this target; may be repeated")
    parser.add_argument("--docker", action="store_true", help="also the targets that need a Docker engine")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), metavar="FOLDER")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="reproduce a finding")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
