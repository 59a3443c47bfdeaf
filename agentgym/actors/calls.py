"""Calls under way to the processes of a group: each ends with its answers, its deadline, or the group's death."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agentgym.errors import InfraError

SLICES = 10  # of a deadline; one that takes twice its time counts as a tenth of itself
T = TypeVar("T")


class ProcessDied(InfraError):
    """A process or its actor died; its request may be made again elsewhere."""


class ActorDied(ProcessDied):
    """An actor says of itself that it can do no more. Its process may live; it is ended as a dead one is."""


class NoAnswer(InfraError):
    """A call was not answered within its time; its processes may be alive."""


class Calls:
    """Those of one group. dead: done with the reason once it is dead. num_answers: calls that were answered."""

    def __init__(self, name: str) -> None:
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.num_answers = 0
        self._name = name
        self._ends: set[asyncio.Future[None]] = set()  # of calls under way

    def end(self, reason: str) -> None:
        """The group is dead: calls under way fail with ProcessDied."""
        if not self.dead.done():
            self.dead.set_result(reason)
            for end in self._ends:
                end.set_result(None)
            self._ends.clear()

    async def answers(
        self, name: str, asked: Sequence[asyncio.Future[T]], read: Callable[[T], Any], timeout_s: float | None
    ) -> list[Any]:
        """What all the answers say, read as they come: the first error is raised, for which other ranks may wait.

        Else the death or the deadline is, where that comes first. While this process's event loop is late, hardly any
        of the deadline passes: the answer may have been here for long.
        """
        clock_s = asyncio.get_running_loop().time
        left_s = math.inf if timeout_s is None else timeout_s
        slice_s = left_s / SLICES
        values: dict[asyncio.Future[T], Any] = {}
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.add(end)  # of its own: to leave a future for which thousands wait takes long
        if self.dead.done():
            end.set_result(None)
        try:
            while len(values) < len(asked):
                waited = {answer for answer in asked if answer not in values} | {end}
                began_s = clock_s()
                wait_s = None if timeout_s is None else min(slice_s, left_s)
                done, _ = await asyncio.wait(waited, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                passed_s = clock_s() - began_s
                left_s -= passed_s if passed_s < 2 * slice_s else slice_s / SLICES
                values |= {answer: read(answer.result()) for answer in asked if answer in done}
                if len(values) < len(asked) and self.dead.done():
                    raise ProcessDied(f"{self._name} died during {name}: {self.dead.result()}")
                if len(values) < len(asked) and left_s <= 0:
                    raise NoAnswer(f"{self._name} did not answer {name} within {timeout_s} s")
            self.num_answers += 1
            return [values[answer] for answer in asked]
        finally:
            self._ends.discard(end)
            for answer in asked:
                answer.cancel()
