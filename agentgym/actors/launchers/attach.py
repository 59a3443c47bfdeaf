"""Machines on which `agentgym host` waits for a controller."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.actors.host_process import PORT, keep_alive, read_hello
from agentgym.actors.launchers.launcher import LaunchedHost, Launcher
from agentgym.actors.launchers.remote import launched, mesh_of, transport_towards
from agentgym.errors import UserError

if TYPE_CHECKING:
    from monarch.actor import HostMesh

RETRY_S = 1.0
AGAIN_WAIT_S = 5.0
HELLO_S = 60.0  # for a machine that accepted to start its host process


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachLauncher(Launcher):
    """Machines on which `agentgym host` waits."""

    machines: tuple[str, ...] = ()
    """Names or addresses of the machines, HOST or HOST:PORT."""
    wait_s: float = 60.0
    """Seconds for which a machine may still be starting."""

    def __post_init__(self) -> None:
        for machine in self.machines:
            name, port = parse(machine)
            if not name or not 0 < port < 65536:
                raise ValueError(f"launcher.machines has {machine!r}; give HOST or HOST:PORT")

    def transport(self) -> str:
        if not self.machines:
            raise UserError(
                "launcher.machines is empty: start `agentgym host` on the machines, then name them, as in "
                f"--set launcher.machines=[node1,node2:{PORT}]"
            )
        return transport_towards(parse(self.machines[0])[0])

    def hosts(self, log_dir: Path | None) -> AbstractAsyncContextManager[Sequence[LaunchedHost]]:
        return attached(self.machines, self.wait_s)


@asynccontextmanager
async def attached(
    machines: Sequence[str], wait_s: float, *, named_later: bool = False
) -> AsyncIterator[Sequence[LaunchedHost]]:
    """named_later: a name that is still unknown is waited for, too."""
    async with AsyncExitStack() as stack:

        async def one(machine: str) -> LaunchedHost:
            first = partial(attach, machine, wait_s, named_later=named_later)
            return await launched(machine, first, stack, later=partial(attach, machine, AGAIN_WAIT_S))

        yield await asyncio.gather(*map(one, machines))


async def attach(machine: str, wait_s: float, stack: AsyncExitStack, *, named_later: bool = True) -> HostMesh:
    """Become the controller of a machine on which `agentgym host` runs, until the stack is closed.

    Raises UserError for one that is away for wait_s, is busy, or answers as something else.
    """
    name, port = parse(machine)
    reader, writer = await connect(name, port, wait_s, named_later=named_later)
    stack.callback(writer.close)
    keep_alive(writer.get_extra_info("socket"))
    try:
        line = (await asyncio.wait_for(reader.readline(), max(wait_s, HELLO_S))).decode(errors="replace")
    except TimeoutError:
        line = "nothing"
    address = read_hello(line)
    if not address:
        said = line.strip() or "only closed the connection"
        raise UserError(f"{machine} is not ready to be a host: it said {said!r}. Does `agentgym host` run there?")
    return mesh_of(name, address)


def parse(machine: str) -> tuple[str, int]:
    """Parses `HOST`, `HOST:PORT` or `[IPV6]:PORT`."""
    name, colon, port = machine.rpartition(":")
    if not colon or machine.endswith("]") or (name.count(":") and not name.startswith("[")):
        name, port = machine, str(PORT)
    return name.strip("[]"), int(port) if port.isdecimal() else 0


async def connect(
    name: str, port: int, wait_s: float, *, named_later: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises UserError for a machine that is unknown, and for one that does not accept within wait_s."""
    reason = "no answer"
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    return await asyncio.open_connection(name, port)
                except OSError as error:
                    if isinstance(error, socket.gaierror) and not named_later:
                        raise UserError(f"the host {name!r} is unknown here: {error.strerror}") from error
                    reason = str(error.strerror or error)
                await asyncio.sleep(RETRY_S)
    except TimeoutError as error:
        raise UserError(
            f"host {name} does not answer on port {port} within {wait_s:g} s ({reason}); `agentgym host` must run "
            "there, and no firewall may be between"
        ) from error
