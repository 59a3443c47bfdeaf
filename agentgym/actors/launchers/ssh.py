"""Machines with an SSH server."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentgym.actors.launchers.launcher import LaunchedHost, Launcher
from agentgym.actors.launchers.remote import host_command, launched, own_address, start_host, transport_towards
from agentgym.errors import UserError

OPTIONS = ("-T", "-oBatchMode=yes", "-oConnectTimeout=20", "-oServerAliveInterval=20", "-oServerAliveCountMax=9")
"""No question is asked; a server that is silent for three minutes is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshLauncher(Launcher):
    """Machines with an SSH server; the controller starts their host processes."""

    machines: tuple[str, ...] = ()
    """Machines as ssh takes them, NAME or USER@NAME; names of ssh's config work too."""
    options: tuple[str, ...] = ()
    """More options of ssh, each a string."""
    python: str = ""
    """The Python on the machines; empty is the path of this one."""
    folder: str = ""
    """The folder in which it runs there; empty is the current one's path."""
    forward: tuple[str, ...] = ("PYTHONPATH", "HF_HOME")
    """Environment variables that it gets as they are here. Not for secrets, which lists of processes would show."""
    port: int = 0
    """The port of Monarch's messages on the machines; 0 is any that is free."""
    wait_s: float = 60.0
    """Seconds that a machine may take to start."""

    def transport(self) -> str:
        if not self.machines:
            raise UserError("launcher.machines is empty: name them, as in --set launcher.machines=[node1,node2]")
        if shutil.which("ssh") is None:
            raise UserError("the launcher ssh needs the program ssh, which is not on the PATH: install openssh-client")
        return transport_towards(self._address(self.machines[0]))

    @asynccontextmanager
    async def hosts(self, log_dir: Path | None) -> AsyncIterator[Sequence[LaunchedHost]]:
        async with AsyncExitStack() as stack:

            async def one(machine: str) -> LaunchedHost:
                controller = own_address(await asyncio.to_thread(self._address, machine))
                command = ["ssh", *OPTIONS, *self.options, machine, self._there(machine, controller)]
                return await launched(machine, partial(start_host, machine, command, self.wait_s, log_dir), stack)

            yield await asyncio.gather(*map(one, self.machines))

    def _there(self, machine: str, controller: str) -> str:
        variables = [f"{name}={os.environ[name]}" for name in self.forward if name in os.environ]
        host = host_command(machine, controller, self.port, self.python or sys.executable)
        return f"cd {shlex.quote(self.folder or str(Path.cwd()))} && exec {shlex.join(['env', *variables, *host])}"

    def _address(self, machine: str) -> str:
        """What ssh's config makes of the name."""
        asked = subprocess.run(["ssh", "-G", *self.options, machine], capture_output=True, text=True)
        names = [line.split()[1] for line in asked.stdout.splitlines() if line.startswith("hostname ")]
        if not names:
            raise UserError(f"ssh does not accept {machine!r}: {asked.stderr.strip()}")
        return names[0]
