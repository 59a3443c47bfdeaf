"""What the launchers of other machines share: addresses, and a host process at the end of a command's pipes."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from agentgym.actors import network
from agentgym.actors.exits import READ_BYTES, without_traces
from agentgym.actors.host_process import bracketed, read_hello
from agentgym.actors.launchers.launcher import CHILD_MODULE, LaunchedHost
from agentgym.errors import UserError

if TYPE_CHECKING:
    from monarch.actor import HostMesh

Start: TypeAlias = "Callable[[AsyncExitStack], Awaitable[HostMesh]]"
END_S = 10.0


def own_address(name: str) -> str:
    """This machine's, as the other one sees it. Raises UserError for a name that is unknown."""
    try:
        return network.own_address(name)
    except OSError as error:
        raise UserError(f"the host {name!r} is unreachable from here: {error.strerror or error}") from error


def transport_towards(name: str) -> str:
    """Monarch's, of a controller that the other machine reaches."""
    return f"tcp://{bracketed(own_address(name))}:0"


def mesh_of(name: str, address: str) -> HostMesh:
    """A mesh of one host. name: of the machine; Monarch's names are of letters and digits."""
    from monarch.actor import attach_to_workers

    label = re.sub(r"[^A-Za-z0-9]", "_", name)
    return attach_to_workers(name=label, ca="trust_all_connections", workers=[address])


def host_command(name: str, controller: str, port: int, python: str = sys.executable) -> list[str]:
    """Starts the host process, to be run on the other machine with pipes as its standard input and output."""
    return [python, "-m", CHILD_MODULE, "--name", name, "--host", f"tcp://:{port}", "--controller", controller]


async def launched(name: str, start: Start, stack: AsyncExitStack, *, later: Start | None = None) -> LaunchedHost:
    """A host that is started now, and again after it was lost. later: how; as now where it is None."""
    own = await stack.enter_async_context(AsyncExitStack())

    async def again() -> HostMesh:
        await own.aclose()  # else the machine would still belong to the connection before
        return await (later or start)(own)

    return LaunchedHost(name=name, mesh=await start(own), again=again)


async def start_host(
    name: str, command: list[str], wait_s: float, log_dir: Path | None, stack: AsyncExitStack
) -> HostMesh:
    """Run a command that runs the host process there, until the stack is closed.

    log_dir: gets what the host prints. Raises UserError with the command's last words when there is no host in wait_s.
    """
    log = log_dir / f"{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.log" if log_dir else None
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    errors = _Tail()
    copying = asyncio.create_task(errors.copy(process.stderr, log))
    stack.push_async_callback(_end, process, copying)
    address, late = "", ""
    try:
        async with asyncio.timeout(wait_s):
            while not address and (line := (await process.stdout.readline()).decode(errors="replace")):
                address = read_hello(line)
    except TimeoutError:
        late = f" within {wait_s:g} s"
    if not address:
        await _end(process, copying)
        why = errors.last or f"{command[0]} ended with exit code {process.returncode}"
        raise UserError(f"no host process could be started on {name} by {command[0]}{late}: {why}")
    return mesh_of(name, address)


class _Tail:
    """The end of a stream, which goes on into a file."""

    def __init__(self) -> None:
        self._bytes = b""

    @property
    def last(self) -> str:
        """Its last line, that is of no trace."""
        return (without_traces(self._bytes.decode(errors="replace")).splitlines() or [""])[-1]

    async def copy(self, stream: asyncio.StreamReader, path: Path | None) -> None:
        while chunk := await stream.read(1 << 16):
            self._bytes = (self._bytes + chunk).rstrip()[-READ_BYTES:]
            if path is not None:
                with path.open("ab") as file:
                    file.write(chunk)


async def _end(process: asyncio.subprocess.Process, copying: asyncio.Task[None]) -> None:
    """Its standard input ends first: the host process there ends by itself, then the command."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_S)
    if process.returncode is None:
        process.kill()
        await process.wait()
    await copying
