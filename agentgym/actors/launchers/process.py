"""Host processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.actors.launchers.launcher import CHILD_MODULE, Launcher
from agentgym.actors.sockets import check_socket_folder

if TYPE_CHECKING:
    from monarch.actor import HostMesh

PREFIX = "agentgym-hosts-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLauncher(Launcher):
    """Host processes on this machine, which Monarch uses as it uses other machines. They die with the controller."""

    num_hosts: int = 1
    """Host processes, each of which counts as a host of its own."""

    def __post_init__(self) -> None:
        if self.num_hosts < 1:
            raise ValueError(f"launcher.num_hosts is {self.num_hosts}; give at least 1")

    @asynccontextmanager
    async def hosts(self, log_dir: Path | None) -> AsyncIterator[Sequence[HostMesh]]:
        from monarch.actor import attach_to_workers

        check_socket_folder(len(f"/{PREFIX}12345678/host{self.num_hosts}"))
        with ExitStack() as stack:
            sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX))
            meshes = []
            for name in (f"host{number}" for number in range(self.num_hosts)):
                address, log = f"ipc://{sockets}/{name}", log_dir / f"{name}.log" if log_dir else os.devnull
                command = [sys.executable, "-m", CHILD_MODULE, "--name", name, "--log", str(log), "--host", address]
                # It ends when this pipe does, which is when this process has ended; its own processes die with it.
                process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))  # noqa: ASYNC220
                stack.callback(process.kill)
                meshes.append(attach_to_workers(name=name, ca="trust_all_connections", workers=[address]))
            yield meshes
