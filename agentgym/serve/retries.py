"""Which calls of one key are the same call, sent again.

A client that lost its connection sends its request again. What the policy said must then neither be sampled nor
recorded twice; and two agents that ask the same at once (best of n) must both be answered. So a call with an equal
body is, in this order:

1. the answer that was made for such a call and never reached its client;
2. marked as a retry (`x-stainless-retry-count` above 0): nothing new, if one is under way, or the last that was
   answered; unless the client of an equal call went away before it was answered, which is the one that is sent again;
3. a call of its own.

A call ends when its last client went away: then it is cancelled, and nothing of it is recorded.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from agentgym.policies.conversation import CallAnswer
from agentgym.serve.dialect import Made

MAX_BODIES = 32
"""So many different bodies of a key are remembered."""


@dataclass(slots=True, eq=False)
class Call:
    """One call and those who wait for it. reached: a client has its answer."""

    task: asyncio.Task[CallAnswer]
    same: _Same
    waiting: int = 1
    reached: bool = False
    made: Made = field(default_factory=lambda: Made(secrets.token_hex(12), int(time.time())))

    @property
    def answered(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


@dataclass(slots=True)
class _Same:
    """The calls with one body. lost: how many were cancelled because their clients went away."""

    calls: list[Call] = field(default_factory=list)
    lost: int = 0


class Retries:
    """The calls of one key."""

    def __init__(self) -> None:
        self._same: dict[int, _Same] = {}

    def find(self, body: int, *, marked: bool) -> Call | None:
        """The call that is sent again, with one more who waits for it; None: it is a call of its own.

        body: its hash, and that of the path.
        """
        same = self._same.get(body)
        if same is None:
            return None
        found = next((call for call in same.calls if call.answered and not call.reached and not call.waiting), None)
        if found is None and same.lost:
            same.lost -= 1
            return None
        if found is None and marked and same.calls:
            found = next((call for call in same.calls if not call.task.done()), same.calls[-1])
        if found is not None:
            found.waiting += 1
        return found

    def begin(self, body: int, answer: Coroutine[Any, Any, CallAnswer]) -> Call:
        """A call of its own, which runs from now on."""
        same = self._same.pop(body, None) or _Same()
        self._same[body] = same  # now the newest
        reached = [call for call in same.calls if call.reached and call.task.done()]
        same.calls = reached[-1:] + [call for call in same.calls if call not in reached]
        call = Call(asyncio.create_task(answer), same)
        same.calls.append(call)
        self._forget()
        return call

    def leave(self, call: Call, *, reached: bool) -> None:
        """One client less. reached: it has the answer, or the refusal."""
        call.waiting -= 1
        call.reached |= reached
        ended = call.task.done()
        if not ended and not call.waiting:
            call.task.cancel()
            call.same.lost += 1
        if not call.answered and (ended or not call.waiting) and call in call.same.calls:
            call.same.calls.remove(call)  # a refusal is not remembered: the next may be an answer

    def running(self) -> list[Call]:
        return [call for same in self._same.values() for call in same.calls if not call.task.done()]

    def _forget(self) -> None:
        while len(self._same) > MAX_BODIES:
            oldest = next((n for n, same in self._same.items() if all(c.task.done() for c in same.calls)), None)
            if oldest is None:
                return
            del self._same[oldest]
