"""The nodes of a SLURM allocation."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentgym.actors.launchers.launcher import LaunchedHost, Launcher
from agentgym.actors.launchers.remote import host_command, launched, own_address, start_host, transport_towards
from agentgym.errors import UserError

STEP = ("srun", "--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--cpu-bind=none", "--no-kill", "--quiet")
"""A step of its own per node: it has all that the job has there, and one that is lost ends no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLauncher(Launcher):
    """Every node of the allocation that the controller is in, its own included, in SLURM's order."""

    srun: tuple[str, ...] = ()
    """More options of the `srun` that starts each node's step."""
    port: int = 0
    """The port of Monarch's messages on the nodes; 0 is any that is free."""
    wait_s: float = 120.0
    """Seconds that a node may take to start its host process."""

    def transport(self) -> str:
        return transport_towards(_another(nodes_of(os.environ)))

    @asynccontextmanager
    async def hosts(self, log_dir: Path | None) -> AsyncIterator[Sequence[LaunchedHost]]:
        nodes = nodes_of(os.environ)
        controller = own_address(_another(nodes))

        async with AsyncExitStack() as stack:

            async def one(node: str) -> LaunchedHost:
                command = [*STEP, f"--nodelist={node}", *self.srun, *host_command(node, controller, self.port)]
                return await launched(node, partial(start_host, node, command, self.wait_s, log_dir), stack)

            yield await asyncio.gather(*map(one, nodes))


def nodes_of(environment: Mapping[str, str]) -> list[str]:
    """Returns the nodes of the allocation that a process with this environment is in. Raises UserError outside one."""
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    if not nodes:
        raise UserError(
            "the launcher slurm uses the nodes of the allocation that the controller is in, and this is none: "
            "`agentgym launch slurm RECIPE` submits a job, `salloc --nodes=2` gets an allocation"
        )
    for program in ("srun", "scontrol"):
        if shutil.which(program) is None:
            raise UserError(f"the launcher slurm needs {program}, which is not on the PATH of {socket.gethostname()}")
    listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True)
    if listed.returncode:
        raise UserError(f"`scontrol show hostnames {nodes}` failed: {listed.stderr.strip()}")
    return listed.stdout.split()


def _another(nodes: Sequence[str]) -> str:
    """A node that is not this machine, where there is one: towards itself a machine's address may be of loopback."""
    return next((node for node in nodes if node.partition(".")[0] != socket.gethostname().partition(".")[0]), nodes[0])
