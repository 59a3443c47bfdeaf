"""A child process with a channel of frames, in a group of its own: it is killed with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from agentgym.killable_child import LENGTH


def own_environment() -> dict[str, str]:
    """For a child that imports what this process can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def exit_reason(code: int | None) -> str:
    """`exited with 1` or `was killed by SIGKILL`."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"exited with {code}"


def spawn(
    module: str, environ: Mapping[str, str], *, python: str = "", output: int | None = None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A child that runs `main(descriptor, parent's process number)` of a module, and our end of its channel.

    python: the interpreter; empty is this one. output: a descriptor for what it writes; None is this process's own.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        try:
            process = subprocess.Popen(
                [python or sys.executable, "-P", "-c", f"from {module} import main; main({fd}, {os.getpid()})"],
                env=environ,
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that a Ctrl-C is ours to handle, and `kill_group` reaches its children
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The child and all that it started and that did not leave its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class AsyncChild:
    """One child of an event loop: `open` it once; `alive` as long as nobody closed its channel."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def alive(self) -> bool:
        return self._writer is not None and self._reader is not None and not self._reader.at_eof()

    @property
    def exit_reason(self) -> str:
        return exit_reason(self.process.returncode if self.process else None)

    async def open(
        self, module: str, environ: Mapping[str, str], *, python: str = "", output: int | None = None
    ) -> None:
        """See `spawn`, which takes about 2 ms."""
        self.process, ours = spawn(module, environ, python=python, output=output)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)

    async def send(self, body: bytes) -> None:
        """Raises EOFError when the child was killed, OSError when it ended."""
        if self._writer is None:
            raise EOFError("the process was killed")
        self._writer.write(LENGTH.pack(len(body)) + body)
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Raises EOFError."""
        assert self._reader is not None
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return await self._reader.readexactly(size)

    def close_channel(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    def kill(self) -> None:
        """The child and its group; safe to call twice."""
        self.close_channel()
        if self.process is not None and self.process.returncode is None:
            kill_group(self.process)
            self.process.wait()
