"""Plain reward functions in a pool of killable processes; one that hangs is killed and replaced."""

from __future__ import annotations

import asyncio
import base64
import pickle
from collections.abc import Sequence

from agentgym.import_path import loaded_files
from agentgym.killable.pool import Pool
from agentgym.killable.process import Child, own_environment
from agentgym.rollout.worker import Answer
from agentgym.types import Episode

START_S = 60.0


class WorkerPool:
    """Keeps at most `size` processes, each of which scores one episode at a time."""

    def __init__(self, functions: Sequence[bytes], *, size: int) -> None:
        given = {"functions": [base64.b64encode(one).decode() for one in functions], "files": loaded_files()}

        def child() -> Child:
            return Child("agentgym.rollout.worker:scores", given, own_environment())

        self._pool = Pool(child, "reward functions", size=size, start_s=START_S)

    @property
    def num_started(self) -> int:
        return self._pool.num_started

    async def run(self, episode: Episode, timeouts_s: Sequence[float]) -> list[Answer]:
        """The answers of the functions, in order; the last one is a failure if fewer come back.

        Raises InfraError when no process could be started.
        """
        answers: list[Answer] = []
        async with self._pool.child() as child:
            try:
                async with asyncio.timeout(timeout_s := timeouts_s[0]):
                    await child.send(pickle.dumps(episode, pickle.HIGHEST_PROTOCOL))
                for timeout_s in timeouts_s:
                    async with asyncio.timeout(timeout_s):
                        answers.append(Answer.from_json(await child.receive()))
            except TimeoutError:
                await child.end()
                answers.append(Answer(error_kind="TimeoutError", error=f"it took longer than {timeout_s:g} s"))
            except (EOFError, OSError):
                await child.end()
                answers.append(Answer(error_kind="ProcessDied", error=f"its process {child.exit_reason}"))
        return answers

    async def close(self) -> None:
        """End every process; safe to call twice."""
        await self._pool.close()
