"""Keeps a few worker processes for plain reward functions; one that hangs is killed and replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from agentgym.errors import InfraError
from agentgym.import_path import loaded_files
from agentgym.killable_child import LENGTH
from agentgym.rollout.worker import READY, Answer, Setup
from agentgym.types import Episode

log = logging.getLogger(__name__)


class WorkerPool:
    """Starts workers when they are needed, at most `size`, each of which serves one episode at a time."""

    def __init__(self, functions: Sequence[bytes], *, size: int, start_timeout_s: float = 60.0) -> None:
        self._setup = pickle.dumps(Setup(functions=tuple(functions), files=loaded_files()))
        self._start_timeout_s = start_timeout_s
        self._free = asyncio.Semaphore(size)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self.started = 0

    async def run(self, episode: Episode, timeouts_s: Sequence[float]) -> list[Answer]:
        """The answers of the functions, in order; the last one is a failure if fewer come back.

        Raises InfraError when no worker could be started.
        """
        async with self._free:
            worker = await self._take()
            try:
                answers = await self._ask(worker, episode, timeouts_s)
            except BaseException:  # cancelled while answers were under way: the channel is out of step
                self._drop(worker)
                raise
            self._busy.discard(worker)
            if worker.alive:
                self._idle.append(worker)
            return answers

    def close(self) -> None:
        """End every worker; safe to call twice."""
        for worker in [*self._idle, *self._busy]:
            self._drop(worker)
        self._idle.clear()

    async def _take(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                self._busy.add(worker)
                return worker
            worker.kill()
        worker = _Worker()
        self._busy.add(worker)
        self.started += 1
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await worker.start(self._setup)
        except (OSError, EOFError, TimeoutError) as error:
            self._drop(worker)
            raise InfraError(
                f"a process for reward functions did not start in {self._start_timeout_s:g} s: {error!r}"
            ) from error
        except BaseException:
            self._drop(worker)
            raise
        return worker

    async def _ask(self, worker: _Worker, episode: Episode, timeouts_s: Sequence[float]) -> list[Answer]:
        answers: list[Answer] = []
        try:
            async with asyncio.timeout(timeout_s := timeouts_s[0]):
                await worker.send(pickle.dumps(episode, pickle.HIGHEST_PROTOCOL))
            for timeout_s in timeouts_s:
                async with asyncio.timeout(timeout_s):
                    answers.append(Answer.from_json(await worker.receive()))
        except TimeoutError:
            worker.kill()
            answers.append(Answer(error_kind="TimeoutError", error=f"it took longer than {timeout_s:g} s"))
        except (EOFError, OSError):
            worker.kill()
            answers.append(Answer(error_kind="ProcessDied", error=f"its process {worker.exit_reason}"))
        if len(answers) < len(timeouts_s):
            worker.kill()  # late answers would be taken for the next episode's
        return answers

    def _drop(self, worker: _Worker) -> None:
        self._busy.discard(worker)
        worker.kill()


class _Worker:
    """One child and the channel to it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def alive(self) -> bool:
        return self._writer is not None and self._reader is not None and not self._reader.at_eof()

    @property
    def exit_reason(self) -> str:
        code = self._process.returncode if self._process else None
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with {code}"

    async def start(self, setup: bytes) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            code = f"from agentgym.rollout.worker import main; main({fd}, {os.getpid()})"
            self._process = subprocess.Popen(  # noqa: ASYNC220  about 2 ms, once a worker
                [sys.executable, "-P", "-c", code],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=(fd,),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # so that a Ctrl-C is ours to handle, and `kill` reaches its children
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        await self.send(setup)
        if (word := await self.receive()) != READY:
            raise EOFError(f"the child said {word!r:.80}")
        log.debug("worker %d for reward functions is ready", self._process.pid)

    async def send(self, body: bytes) -> None:
        assert self._writer is not None
        self._writer.write(LENGTH.pack(len(body)) + body)
        await self._writer.drain()

    async def receive(self) -> bytes:
        assert self._reader is not None
        (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        return await self._reader.readexactly(size)

    def kill(self) -> None:
        """The child and all that it started; safe to call twice."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        if self._process is not None and self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
