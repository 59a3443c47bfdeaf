"""The launcher slurm in a real cluster of SLURM, whose nodes are namespaces of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentgym.run.clusters import Order, slurm_script
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
CPUS = 4  # of each node
PROGRAM = """
import asyncio
import os
import subprocess
from counting import Counting
from agentgym.actors.launchers import SlurmLauncher
from agentgym.actors.runtime import Runtime

async def main():
    async with Runtime(launcher=SlurmLauncher()):
        groups = [await Counting.options(procs=2).as_actor(10) for _ in range(3)]
        for group in groups:
            names = {process.namespace.split()[0] for process in group.processes}
            print("group", *names, await group.call(Counting.add, 1, timeout_s=60), flush=True)
        subprocess.run(["scontrol", "--oneliner", "show", "step", os.environ["SLURM_JOB_ID"]])
        await asyncio.gather(*(group.stop() for group in groups))

asyncio.run(main())
"""


@pytest.mark.parametrize(("asked", "given"), [(0, CPUS), (2, 2)])
async def test_every_node_of_a_launch_is_a_host_with_its_cpus_and_is_left_empty(
    asked: int, given: int, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "run").write_text(
        f"#!/bin/bash\nPYTHONPATH={Path(__file__).parent} exec {sys.executable} {tmp_path / 'program.py'}\n"
    )
    (tmp_path / "run").chmod(0o755)
    order = Order(
        name="one", recipe="r.yaml", runs_dir="runs", folder=str(tmp_path), python="./run", num_nodes=3, cpus=asked
    )
    (tmp_path / "job.sh").write_text(slurm_script(order, log=str(tmp_path / "out")))
    async with hosts_here.namespaces(3) as hosts, cluster_here.slurm_cluster(hosts, tmp_path / "slurm") as cluster:
        cluster.ask("sbatch", "--test-only", str(tmp_path / "job.sh"))
        job = cluster.ask("sbatch", "--parsable", str(tmp_path / "job.sh"))
        state = await cluster.state(job, "COMPLETED", "FAILED")
        out = (tmp_path / "out").read_text()
        assert state == "COMPLETED", out
        groups = [line for line in out.splitlines() if line.startswith("group")]
        assert groups == [f"group host{index} [11, 11]" for index in range(3)], out
        steps = [line for line in out.splitlines() if line.startswith("StepId=") and " Name=batch " not in line]
        cpus = [line.split(" CPUs=")[1].split()[0] for line in steps]
        assert cpus == [str(given)] * 3 and cluster.field(job, "NumCPUs") == str(3 * given), out
        for host in hosts:
            assert "agentgym.actors" not in (await host.run("ps", "ax")).output
