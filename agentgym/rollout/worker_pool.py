"""Keeps a few worker processes for plain reward functions; one that hangs is killed and replaced."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence

from agentgym.errors import InfraError
from agentgym.import_path import loaded_files
from agentgym.killable_process import AsyncChild, own_environment
from agentgym.rollout.worker import READY, Answer, Setup
from agentgym.types import Episode


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


class _Worker(AsyncChild):
    """A child that scores episodes."""

    async def start(self, setup: bytes) -> None:
        await self.open("agentgym.rollout.worker", own_environment())
        await self.send(setup)
        if (word := await self.receive()) != READY:
            raise EOFError(f"the child said {word!r:.80}")
