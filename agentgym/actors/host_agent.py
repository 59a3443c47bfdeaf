"""The process of ours on every host that is elsewhere: it says what the host is, and does there what only it can."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from agentgym.actors import owned_folder
from agentgym.actors.endpoint import LifecycleActor, endpoint
from agentgym.actors.exits import how_it_ended
from agentgym.actors.file_server import serve_files
from agentgym.actors.gpus import gpus_of_machine
from agentgym.actors.network import own_address
from agentgym.actors.process_id import ProcessId
from agentgym.stability import VERSION

PACKAGES = ("agentgym", "torch", "torchmonarch")
"""Which must be the same on all hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInfo:
    """address: as the controller sees it. versions: by package. clock_s: since 1970."""

    name: str
    address: str
    gpus: tuple[str, ...]
    versions: dict[str, str]
    clock_s: float

    @classmethod
    def of_this(cls, controller: str) -> HostInfo:
        return cls(
            name=socket.gethostname(),
            address=own_address(controller),
            gpus=gpus_of_machine(),
            versions={package: _version(package) for package in PACKAGES},
            clock_s=time.time(),
        )


class HostAgent(LifecycleActor):
    """One for each host."""

    def __init__(self) -> None:
        self._servers: dict[str, asyncio.Server] = {}  # by folder

    async def on_stop(self) -> None:
        for folder, server in self._servers.items():
            server.close()
            shutil.rmtree(folder, ignore_errors=True)

    @endpoint
    async def describe(self, controller: str) -> HostInfo:
        """controller: an address of the process that asks."""
        return HostInfo.of_this(controller)

    @endpoint
    async def read(self, path: str) -> bytes | None:
        """A small file; None where there is none."""
        with suppress(OSError):
            return await asyncio.to_thread(Path(path).read_bytes)
        return None

    @endpoint
    async def write(self, path: str, content: bytes) -> str:
        """Write a small file; returns why that failed."""
        try:
            await asyncio.to_thread(Path(path).write_bytes, content)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    @endpoint
    async def ended(self, process: ProcessId) -> str:
        """Wait for the end of a process of this host. Before Linux 6.15 its parent alone can know how it ended."""
        try:
            descriptor = process.open()
        except ProcessLookupError:
            return "it no longer exists"
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, gone.set)
        try:
            await gone.wait()
            return how_it_ended(descriptor)
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    @endpoint
    async def kill(self, process: ProcessId) -> None:
        with suppress(ProcessLookupError):
            descriptor = process.open()
            try:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            finally:
                os.close(descriptor)

    @endpoint
    async def serve(self, folder: str, token: str, port: int) -> int:
        """Make a folder that ends with this process, and hand out its files. port: 0 is a free one."""
        root = Path(folder)
        owned_folder.sweep(root.parent)
        owned_folder.claim(root, exist_ok=True)
        self._servers[folder] = server = await serve_files(root, token, port)
        return int(server.sockets[0].getsockname()[1])


def _version(package: str) -> str:
    try:
        return VERSION if package == "agentgym" else version(package)
    except PackageNotFoundError:
        return "none"
