"""A SLURM cluster whose nodes are namespaces of this machine: Debian's slurm-wlm and munge. Needs root."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.namespaces import NamespaceHost, Running

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
CONFIG = """
ClusterName=agentgym
SlurmctldHost={here}({gateway})
SlurmctldPort={port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=20
KillWait=10
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
JobRequeue=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_unavailable() -> str:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"a SLURM cluster needs {', '.join(missing)}: apt-get install slurm-wlm munge" if missing else ""


@dataclass(slots=True, kw_only=True)
class SlurmCluster:
    """folder: with `slurm.conf` and the logs of the daemons."""

    folder: Path
    controller: subprocess.Popen[bytes]
    nodes: dict[str, Running]

    @property
    def environment(self) -> dict[str, str]:
        """For the programs of SLURM, here and on the nodes."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    async def state(self, job: str, *wanted: str, timeout_s: float = 120.0) -> str:
        """Waits until the job is in one of the states."""
        deadline = time.monotonic() + timeout_s
        while (state := self.field(job, "JobState")) not in wanted:
            assert time.monotonic() < deadline, f"job {job} is {state}, not {wanted}; {self.folder}"
            await asyncio.sleep(0.1)
        return state

    def field(self, job: str, name: str) -> str:
        return self.ask("scontrol", "--oneliner", "show", "job", job).split(f" {name}=")[1].split()[0]


@asynccontextmanager
async def slurm_cluster(hosts: Sequence[NamespaceHost], folder: Path) -> AsyncIterator[SlurmCluster]:
    """The first node's name is that of the first host, and so on. It ends with all of its jobs."""
    for name in ("state", *(f"spool-{host.name}" for host in hosts)):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs=4 RealMemory=2000 State=UNKNOWN" for host in hosts]
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as other:
        ports = {"port": one.getsockname()[1], "slurmd_port": other.getsockname()[1]}
    config = CONFIG.format(
        here=socket.gethostname(), gateway=hosts[0].gateway, folder=folder, nodes="\n".join(nodes), **ports
    )
    (folder / "slurm.conf").write_text(config)
    names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
    options = [f"--{option}={folder / name}" for option, name in names.items()]
    async with AsyncExitStack() as stack:

        def start(*command: str, log: str) -> subprocess.Popen[bytes]:
            with (folder / log).open("ab") as output:
                process = subprocess.Popen(command, stdout=output, stderr=output)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return process

        start("munged", "--foreground", "--force", f"--seed-file={folder / 'munge.seed'}", *options, log="munged.out")
        while not (folder / "munge.socket").exists():
            await asyncio.sleep(0.05)
        conf = ("-f", str(folder / "slurm.conf"))
        controller = start("slurmctld", "-D", *conf, log="slurmctld.log")
        cluster = SlurmCluster(folder=folder, controller=controller, nodes={})
        for host in hosts:
            command = ("slurmd", "-D", *conf, "-N", host.name)
            cluster.nodes[host.name] = await host.start(*command, output=folder / f"slurmd-{host.name}.log")
        deadline = time.monotonic() + 60
        while set(_states(cluster)) != {"idle"}:
            assert time.monotonic() < deadline, f"the nodes are {_states(cluster)}: {folder}"
            await asyncio.sleep(0.2)
        yield cluster


def _states(cluster: SlurmCluster) -> list[str]:
    done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, env=cluster.environment)
    return done.stdout.split() or [done.stderr.strip()]
