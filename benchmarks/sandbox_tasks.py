"""Measures sessions with profile task against `docker run` and `docker exec`: the same image, taking turns.

    python benchmarks/sandbox_tasks.py --rounds 40

"warm": a container waits, as from the third session of an image on. Exit code 1: a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable
from dataclasses import replace
from typing import TypeVar

from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.image import RECIPE

T = TypeVar("T")
TARGETS = (("docker run", "open, warm", 3.0), ("docker exec", "exec", 8.0))
SPEC = SandboxSpec(session=True, profile="task")


async def docker(*words: str) -> None:
    process = await asyncio.create_subprocess_exec("docker", *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    await process.communicate()
    assert process.returncode == 0, words


async def measure(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, by its name."""
    times_ms: dict[str, list[float]] = {}
    config = DockerConfig(pool_size=1, spares=0, spare_sessions=2)
    name = f"agentgym-benchmark-{uuid.uuid4().hex[:8]}"

    async def timed(what: str, call: Awaitable[T]) -> T:
        began_s = time.perf_counter()
        found = await call
        times_ms.setdefault(what, []).append(1e3 * (time.perf_counter() - began_s))
        return found

    await docker("run", "-d", "--rm", "--network=none", f"--name={name}", RECIPE.reference, "sleep", "infinity")
    try:
        async with (
            DockerBackend(config) as warm,
            DockerBackend(replace(config, spare_sessions=0)) as cold,
            cold.session_for(SPEC) as session,
        ):
            for _ in range(3):  # then there are spares
                async with warm.session_for(SPEC):
                    pass
            for _ in range(rounds):
                await timed("docker run", docker("run", "--rm", "--network=none", RECIPE.reference, "true"))
                for what, backend in (("open, warm", warm), ("open, a new container", cold)):
                    opening = backend.session_for(SPEC)
                    await timed(what, opening.__aenter__())
                    await opening.__aexit__(None, None, None)
                for _ in range(3):
                    await timed("docker exec", docker("exec", name, "true"))
                    assert (await timed("exec", session.exec(["true"]))).exit_code == 0
    finally:
        await docker("rm", "-f", name)
    return times_ms


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    times_ms = asyncio.run(measure(parser.parse_args().rounds))
    p50_ms = {name: statistics.median(found) for name, found in times_ms.items()}
    for name, found_ms in p50_ms.items():
        print(f"{name}: p50 {found_ms:.1f} ms of {len(times_ms[name])}")
    ratios = [(p50_ms[raw] / p50_ms[ours], least, f"{raw} against {ours}") for raw, ours, least in TARGETS]
    for ratio, least, what in ratios:
        print(f"{'PASS' if ratio >= least else 'FAIL'}  {what}: {ratio:.1f} times, at least {least:g}")
    return 0 if all(ratio >= least for ratio, least, _ in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
