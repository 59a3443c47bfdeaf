"""Machines on which `agentgym host` waits for a controller."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentgym.actors.host_process import PORT, keep_alive, read_hello
from agentgym.actors.launchers.launcher import LaunchedHost, Launcher
from agentgym.errors import UserError

if TYPE_CHECKING:
    from monarch.actor import HostMesh

RETRY_S = 1.0
AGAIN_WAIT_S = 5.0
HELLO_S = 60.0  # for a machine that accepted to start its host process


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachLauncher(Launcher):
    """hosts: names or addresses, `HOST` or `HOST:PORT`. wait_s: for how long one may be still starting."""

    machines: tuple[str, ...] = ()
    wait_s: float = 60.0

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
        return f"tcp://{address_towards(parse(self.machines[0])[0])}:0"

    @asynccontextmanager
    async def hosts(self, log_dir: Path | None) -> AsyncIterator[Sequence[LaunchedHost]]:
        async with AsyncExitStack() as stack:
            yield await asyncio.gather(*(self._launched(machine, stack) for machine in self.machines))

    async def _launched(self, machine: str, stack: AsyncExitStack) -> LaunchedHost:
        own = await stack.enter_async_context(AsyncExitStack())

        async def again() -> HostMesh:
            await own.aclose()  # else the machine would still be lent to the connection before
            return await attach(machine, AGAIN_WAIT_S, own)

        return LaunchedHost(name=machine, mesh=await attach(machine, self.wait_s, own), again=again)


async def attach(machine: str, wait_s: float, stack: AsyncExitStack) -> HostMesh:
    """Become the controller of a machine on which `agentgym host` runs, until the stack is closed.

    Raises UserError for one that is away for wait_s, is busy, or answers as something else.
    """
    name, port = parse(machine)
    reader, writer = await connect(name, port, wait_s)
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
    """Of `HOST`, `HOST:PORT` or `[IPV6]:PORT`."""
    name, colon, port = machine.rpartition(":")
    if not colon or machine.endswith("]") or (name.count(":") and not name.startswith("[")):
        name, port = machine, str(PORT)
    return name.strip("[]"), int(port) if port.isdecimal() else 0


async def connect(name: str, port: int, wait_s: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises UserError for a machine that is unknown, and for one that does not accept within wait_s."""
    reason = "no answer"
    try:
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    return await asyncio.open_connection(name, port)
                except socket.gaierror as error:
                    raise UserError(f"the host {name!r} is unknown here: {error.strerror}") from error
                except OSError as error:
                    reason = str(error.strerror or error)
                await asyncio.sleep(RETRY_S)
    except TimeoutError as error:
        raise UserError(
            f"host {name} does not answer on port {port} within {wait_s:g} s ({reason}); `agentgym host` must run "
            "there, and no firewall may be between"
        ) from error


def mesh_of(name: str, address: str) -> HostMesh:
    """A mesh of one host. name: of the machine; Monarch's names are of letters and digits."""
    from monarch.actor import attach_to_workers

    label = "".join(letter if letter.isalnum() else "_" for letter in name)
    return attach_to_workers(name=label, ca="trust_all_connections", workers=[address])


def address_towards(name: str) -> str:
    """This machine's own address, as the other one sees it. Raises UserError for a name that is unknown."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise UserError(f"the host {name!r} is unreachable from here: {error.strerror or error}") from error
    return f"[{own}]" if ":" in own else own
