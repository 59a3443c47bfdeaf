"""A bubblewrap backend in a process of an ordinary user, driven from here: the tests may be root, it may not.

Both ends are this file. They trust each other: requests and answers are pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import ordinary_user

from agentgym.config import build
from agentgym.sandbox import Capabilities, GradeRequest, Limits, RunResult, SandboxBackend, SandboxOptions, Verdict
from agentgym.types import SandboxSpec
from agentgym_sandboxes.bubblewrap.backend import BubblewrapBackend
from agentgym_sandboxes.bubblewrap.config import BubblewrapConfig

_SIZE = struct.Struct(">Q")


class ServedBackend(SandboxBackend):
    """What the tests hold: a SandboxBackend whose calls are made by the other process."""

    name = "bubblewrap"

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._metrics: dict[str, float] = {}
        self._num_asked = 0
        self._listening = asyncio.create_task(self._listen())

    def supports(self, spec: SandboxSpec) -> bool:
        return BubblewrapBackend().supports(spec)

    async def probe(self) -> Capabilities:
        return await self._ask("probe")

    async def start(self) -> Self:
        await self._ask("start")
        return self

    async def close(self) -> None:
        if not self._writer.is_closing():
            await self._ask("close")
            self._writer.close()
            await self._listening

    async def run(self, code: str, *, stdin: str = "", limits: Limits = Limits()) -> RunResult:  # noqa: B008
        return await self._ask("run", code, stdin=stdin, limits=limits)

    async def grade(self, request: GradeRequest) -> Verdict:
        return await self._ask("grade", request)

    def metrics(self) -> dict[str, float]:
        """As they were when the last answer was given."""
        return self._metrics

    async def measure(self) -> dict[str, float]:
        """The metrics as they are now."""
        await self._ask("metrics")
        return self._metrics

    async def _ask(self, method: str, *arguments: object, **named: object) -> Any:
        self._num_asked += 1
        number = self._num_asked
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        _send(self._writer, (number, method, arguments, named))
        try:
            return await answer
        except asyncio.CancelledError:
            _send(self._writer, (number, "cancel", (), {}))
            raise

    async def _listen(self) -> None:
        while (answer := await _receive(self._reader)) is not None:
            number, result, error, self._metrics = answer
            waiting = self._answers.pop(number)
            if waiting.done():
                continue
            if error is not None:
                waiting.set_exception(error)
            else:
                waiting.set_result(result)
        for waiting in self._answers.values():
            waiting.set_exception(EOFError("the process that served the backend is gone"))
        self._writer.close()


@contextlib.asynccontextmanager
async def served(options: SandboxOptions, group: Path | None) -> AsyncIterator[ServedBackend]:
    """A backend with these options in a process of the ordinary user's, not started yet."""
    ours, theirs = socket.socketpair()
    arguments = [sys.executable, __file__, str(theirs.fileno()), json.dumps(options)]
    process = await asyncio.create_subprocess_exec(
        *ordinary_user.command(arguments, group), pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL
    )
    theirs.close()
    backend = ServedBackend(*await asyncio.open_connection(sock=ours))
    try:
        yield backend
    finally:
        await backend.close()
        async with asyncio.timeout(30):
            await process.wait()


def _send(writer: asyncio.StreamWriter, value: object) -> None:
    data = pickle.dumps(value)
    writer.write(_SIZE.pack(len(data)) + data)


async def _receive(reader: asyncio.StreamReader) -> Any:
    """The next value; None at the end."""
    try:
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return pickle.loads(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        return None


async def _serve(fd: int, options: SandboxOptions) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=fd))
    backend = BubblewrapBackend(build(BubblewrapConfig, options))
    tasks: dict[int, asyncio.Task[None]] = {}

    async def answer(number: int, method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        result, error = None, None
        try:
            if method != "metrics":  # they come along with every answer
                result = await getattr(backend, method)(*arguments, **named)
        except (Exception, asyncio.CancelledError) as raised:
            error = raised
        sent = None if method == "start" else result
        _send(writer, (number, sent, error, backend.metrics()))

    while (request := await _receive(reader)) is not None:
        number, method, arguments, named = request
        if method == "cancel":
            tasks[number].cancel()
        else:
            tasks[number] = asyncio.create_task(answer(number, method, arguments, named))
    await backend.close()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), json.loads(sys.argv[2])))
