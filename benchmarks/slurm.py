"""A run by `agentgym launch slurm` in a real cluster of three nodes, preempted after its second step; needs root.

The nodes are namespaces of this machine with the daemons of Debian's slurm-wlm. The job gets the scheduler's notice,
saves, requeues itself and continues; then the auditor reads the run's folder, and every node must be empty.

    python benchmarks/slurm.py FOLDER
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path

from tests.hosts.namespaces import namespaces
from tests.hosts.slurm_cluster import SlurmCluster, slurm_cluster

RECIPE = """
env: {name: math, options: {levels: [1]}}
loop: {steps: 6, groups_per_step: 2, group_size: 4, checkpoint_every: 2}
eval: {at_end: false}
logging: {sinks: []}
hosts: {trainer: [host1], generator: [host0, host2]}
"""
AGENTGYM = (sys.executable, "-m", "agentgym.cli.main")


async def drill(cluster: SlurmCluster, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    began = time.monotonic()

    def agentgym(*words: str) -> str:
        done = subprocess.run([*AGENTGYM, *words], cwd=folder, env=cluster.environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"agentgym {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def report(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    submitted = agentgym("launch", "slurm", "recipe.yaml", "--name", "one", "--nodes", "3", "--notice", "60")
    job = submitted.split("Submitted batch job ")[1].split()[0]
    log = folder / f"launches/one/job-{job}.log"
    while not log.exists() or "step 2/6" not in log.read_text():
        assert cluster.field(job, "JobState") in ("PENDING", "RUNNING", "CONFIGURING"), log.read_text()
        await asyncio.sleep(0.2)
    report("step 2 of 6; now the scheduler's notice")
    cluster.ask("scancel", "--signal=USR1", "--batch", job)
    await cluster.state(job, "PENDING")
    report("saved and requeued")
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # SLURM waits two minutes otherwise
    report(await cluster.state(job, "COMPLETED", "FAILED", timeout_s=300))
    print(agentgym("audit", "runs/one"))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new one")
    folder = parser.parse_args().folder.absolute()
    folder.mkdir(parents=True)
    async with namespaces(3) as hosts, slurm_cluster(hosts, folder / "slurm") as cluster:
        await drill(cluster, folder)
        for host in hosts:
            left = [line for line in (await host.run("ps", "ax")).output.splitlines() if "agentgym" in line]
            shared = (await host.run("ls", "/dev/shm")).output.split()
            print(f"{host.name}: processes left {left}, shared memory left {shared}")


if __name__ == "__main__":
    asyncio.run(main())
