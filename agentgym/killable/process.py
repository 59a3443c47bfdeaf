"""The parent's side: a child process with a channel of frames, in a group of its own: it is killed as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from agentgym.errors import UserError
from agentgym.killable.child import LENGTH

MAIN: Final = (
    "import sys; from agentgym.killable.child import main; main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
)


def own_environment() -> dict[str, str]:
    """The environment of a child that imports what this process can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def exit_reason(code: int | None) -> str:
    """`exited with 1` or `was killed by SIGKILL`."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"exited with {code}"


class Child:
    """One child of an event loop: `start` it once; `alive` as long as nobody closed its channel.

    handler, given: see `agentgym.killable.child.main`. memory_mib: its limit, kept by the kernel; 0 is none.
    python: the interpreter; empty is this one.
    """

    output = ""  # what it wrote, where that is collected: for errors

    def __init__(
        self,
        handler: str,
        given: Mapping[str, Any],
        environ: Mapping[str, str],
        *,
        memory_mib: int = 0,
        python: str = "",
    ) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self._handler, self._environ, self._python = handler, environ, python
        self._setup = json.dumps({"given": given, "memory_mib": memory_mib}).encode()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def alive(self) -> bool:
        return self._writer is not None and self._reader is not None and not self._reader.at_eof()

    @property
    def exit_reason(self) -> str:
        return exit_reason(self.process.returncode if self.process else None)

    async def start(self, output: int | None = None) -> None:
        """output: a descriptor for what it writes; None is this process's own.

        Raises UserError for what its handler refused, OSError and EOFError when it did not come up.
        """
        self.process, channel = self._spawn(output)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=channel)
        await self.send(self._setup)
        if error := json.loads(await self.receive()).get("error"):
            raise UserError(error)

    def _spawn(self, output: int | None) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """It takes about 2 ms."""
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            try:
                process = subprocess.Popen(
                    [self._python or sys.executable, "-P", "-c", MAIN, str(fd), str(os.getpid()), self._handler],
                    env=self._environ,
                    pass_fds=(fd,),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # so that a Ctrl-C is ours to handle, and its children can be killed
                )
            except BaseException:
                ours.close()
                raise
        return process, ours

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

    async def end(self) -> None:
        """Kill the child and all that it started and that did not leave its group; safe to call twice."""
        self.close_channel()
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
