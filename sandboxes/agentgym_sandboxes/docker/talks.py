"""Programs of a task's container that we speak with over their standard streams, beside its commands."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, RunResult, Stream
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.outbound import Outbound
from agentgym_sandboxes.docker.tree import PYTHON
from agentgym_sandboxes.network.streams import ByteStream

MAX_CONNECTIONS = 32
GREET_S = 10.0  # within which a connection says whose it is
START = Limits(wall_s=30.0, cpu_s=1_000_000, file_mib=1 << 20, processes=1 << 20, reserves=True)
_TOKEN_BYTES = 32
_CONNECT = """
import os, socket, sys
(port, token, errors), argv = sys.argv[1:4], sys.argv[4:]
failed, fails = os.pipe()
if os.fork():
    os.close(fails)
    said = os.read(failed, 1000)
    os.write(2, said)
    os._exit(127 if said else 0)
try:
    os.setsid()
    connection = socket.create_connection(("127.0.0.1", int(port)))
    connection.sendall(token.encode())
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), 2)
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    os.execvp(argv[0], argv)
except BaseException as error:
    os.write(fails, f"{type(error).__name__}: {error}".encode())
    os._exit(127)
"""  # the pipe is closed where the program begins


class Talks:
    """Starts programs and gives their streams; each says by a word of ours which connection is its own.

    exec: see `DockerMachine`."""

    def __init__(self, container: Container, exec: Callable[..., Awaitable[RunResult]]) -> None:
        self._outbound = Outbound(container, self._greet, MAX_CONNECTIONS, "talk")
        self._exec = exec
        self._awaited: dict[str, asyncio.Future[Stream]] = {}

    async def close(self) -> None:
        await self._outbound.close()

    @asynccontextmanager
    async def open(
        self, command: Sequence[str], user: str, env: Mapping[str, str], folder: str, errors: str
    ) -> AsyncIterator[Stream]:
        """Raises InfraError where it does not start; at the end of the block its streams are closed."""
        port, token = await self._outbound.listen(), secrets.token_hex(_TOKEN_BYTES // 2)
        future = self._awaited[token] = asyncio.get_running_loop().create_future()
        try:
            argv = [*PYTHON, "-I", "-S", "-c", _CONNECT, str(port), token, errors, *command]
            ran = await self._exec({"user": user, "env": dict(env)}, argv, "", folder, START)
            if ran.exit_code != 0:
                raise InfraError(f"{command[0]} was not started: {ran.stderr[-500:] or ran.status.value}")
            async with asyncio.timeout(GREET_S):
                stream = await future
        except TimeoutError as error:
            raise InfraError(f"{command[0]} was started, but its streams were not connected") from error
        finally:
            del self._awaited[token]
        try:
            yield stream
        finally:
            stream.abort()

    async def _greet(self, connection: ByteStream) -> None:
        said = b""
        try:
            async with asyncio.timeout(GREET_S):
                while len(said) < _TOKEN_BYTES and (piece := await connection.read()):
                    said += piece
        except (TimeoutError, OSError):
            pass  # of others that found the port
        future = self._awaited.get(said[:_TOKEN_BYTES].decode("latin-1"))
        if future is None or future.done():
            connection.abort()
        else:
            future.set_result(_Talk(connection, said[_TOKEN_BYTES:]))


class _Talk(Stream):
    """read_already: what came after the word of ours."""

    def __init__(self, connection: ByteStream, read_already: bytes) -> None:
        self._connection = connection
        self._read_already = read_already

    async def read(self) -> bytes:
        piece, self._read_already = self._read_already, b""
        return piece or await self._connection.read()

    async def write(self, data: bytes) -> None:
        await self._connection.write(data)

    def abort(self) -> None:
        self._connection.abort()
