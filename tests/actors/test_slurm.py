"""The launcher slurm in a real cluster of SLURM, whose nodes are namespaces of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.hosts import namespaces as hosts_here
from tests.hosts import slurm_cluster as cluster_here

WANTED = "AGENTGYM_TEST_SLURM"
why = hosts_here.why_unavailable() or cluster_here.why_unavailable()
why = why or (
    "" if os.environ.get(WANTED) else f"{WANTED}=1 starts a cluster here, on a machine that does nothing else"
)
pytestmark = [
    pytest.mark.hostile,
    pytest.mark.xdist_group("namespaces"),
    pytest.mark.skipif(bool(why), reason=why or "none"),
]
PROGRAM = """
import asyncio
from counting import Counting
from agentgym.actors.launchers import SlurmLauncher
from agentgym.actors.runtime import Runtime

async def main():
    async with Runtime(launcher=SlurmLauncher()):
        groups = [await Counting.options(procs=2).as_actor(10) for _ in range(3)]
        for group in groups:
            names = {process.namespace.split()[0] for process in group.processes}
            print("group", *names, await group.call(Counting.add, 1, timeout_s=60), flush=True)
        await asyncio.gather(*(group.stop() for group in groups))

asyncio.run(main())
"""


async def test_every_node_of_an_allocation_is_a_host_and_is_left_empty(tmp_path: Path) -> None:
    folder = tmp_path / "slurm"
    (tmp_path / "program.py").write_text(PROGRAM)
    script = f"#!/bin/bash\nPYTHONPATH={Path(__file__).parent} {sys.executable} {tmp_path / 'program.py'}\n"
    (tmp_path / "job.sh").write_text(script)
    async with hosts_here.namespaces(3) as hosts, cluster_here.slurm_cluster(hosts, folder) as cluster:
        words = ("--parsable", "--nodes=3", "--ntasks-per-node=1", "--output", str(tmp_path / "out"))
        job = cluster.ask("sbatch", *words, str(tmp_path / "job.sh"))
        state = await cluster.state(job, "COMPLETED", "FAILED")
        out = (tmp_path / "out").read_text()
        assert state == "COMPLETED", out
        groups = [line for line in out.splitlines() if line.startswith("group")]
        assert groups == [f"group host{index} [11, 11]" for index in range(3)], out
        for host in hosts:
            assert "agentgym.actors" not in (await host.run("ps", "ax")).output
