"""Every fuzz target, briefly and always with the same cases; benchmarks/fuzz_sandbox.py runs them for long."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
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
from fuzz.running import Target

pytestmark = pytest.mark.hostile

SEED = 1
QUICK = [
    *frame_targets.TARGETS, *network_targets.TARGETS, *value_targets.TARGETS, *verdict_targets.TARGETS,
    *file_targets.TARGETS, *agent_targets.TARGETS,
]  # fmt: skip
DOCKER_CASES = {"agent-frames": 3, "session-arguments": 30}


def check(report: running.Report) -> None:
    assert report.findings == [], report.findings[0].error
    assert report.num_cases > 0


@pytest.mark.parametrize("target", QUICK, ids=[target.name for target in QUICK])
async def test_nothing_is_found(target: Target) -> None:
    num_cases = 60 if target in file_targets.TARGETS else 300  # those make and remove folders
    [report] = await running.run([target], SEED, num_cases=num_cases)
    check(report)


async def test_nothing_is_found_in_the_proxy() -> None:
    async with network_targets.proxy_target() as target:
        [report] = await running.run([target], SEED, num_cases=100)
    check(report)


async def test_nothing_is_found_with_docker(engine: str) -> None:
    async with docker_targets.docker_targets() as targets:
        for target in targets:
            [report] = await running.run([target], SEED, num_cases=DOCKER_CASES.get(target.name, 10))
            check(report)


async def test_a_finding_can_be_made_again(tmp_path: Path) -> None:
    def case(random: Random) -> None:
        assert random.random() < 0.9

    target = Target(name="sometimes", case=case)
    [report] = await running.run([target], SEED, num_cases=100)
    assert report.num_cases == 100 and 0 < len(report.findings) < 30
    path = report.findings[0].write(tmp_path)
    finding = running.Finding.read(path)
    assert finding == report.findings[0]
    again = await running.run_case(target, finding.seed)
    assert again is not None and "assert random.random() < 0.9" in again.error
    assert await running.run_case(target, f"{SEED}:sometimes:0") is None


async def test_a_case_that_takes_too_long_is_a_finding() -> None:
    def case(random: Random) -> None:
        sum(range(1_000_000))

    [report] = await running.run([Target(name="slow", case=case, cpu_s=0.001)], SEED, num_cases=1)
    assert "TooSlow" in report.findings[0].error
