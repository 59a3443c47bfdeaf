"""How long the agent goes on killing what a call left: by rounds too, for time also passes while nothing runs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentgym_sandboxes.agent.calls import Calls
from agentgym_sandboxes.agent.frames import Blob, Header
from agentgym_sandboxes.agent.job import Job
from agentgym_sandboxes.agent.limits import ChildLimits
from agentgym_sandboxes.agent.session import Session
from agentgym_sandboxes.agent.sweep import MIN_KILLS

LIMITS = ChildLimits(1.0, 1, 64, 16, 8, 1000, 1)


class Sweeper:
    """Of processes that need so many kills to end."""

    def __init__(self, num_needed: int) -> None:
        self.num_needed = num_needed

    def has_processes(self, uid: int) -> bool:
        return self.num_needed > 0

    def kill(self, uid: int) -> None:
        self.num_needed -= 1

    def wipe(self, uid: int, neighbours: object = frozenset()) -> bool:
        return True


class StillReactor:
    """A reactor on a machine that stands still between any two of its steps."""

    def __init__(self, num_needed: int) -> None:
        self.sweeper = Sweeper(num_needed)
        self.said: list[Header] = []
        self.timers: list[object] = []

    def send(self, header: Header, blobs: Sequence[Blob] = ()) -> None:
        self.said.append(header)

    def call_at(self, when_s: float, call: object) -> None:
        self.timers.append(call)

    def unwatch(self, fd: int) -> None: ...

    def take_uid(self) -> int:
        return 5

    def give_uid(self, uid: int) -> None: ...


def reason_of_call(num_needed: int) -> object:
    reactor = StillReactor(num_needed)
    calls = Calls(reactor)  # type: ignore[arg-type]
    job = calls.jobs[1] = Job(1, LIMITS, [5])
    job.ending, job.deadline_s = True, time.monotonic() - 10
    while not reactor.said:
        calls.advance()
    return reactor.said[0]["reason"]


def reason_of_reset(num_needed: int) -> object:
    reactor = StillReactor(num_needed)
    session = Session(reactor)  # type: ignore[arg-type]
    session._sweep(1, time.monotonic() - 10, wipe=True)
    while not reactor.said:
        reactor.timers.pop()()  # type: ignore[operator]
    return reactor.said[0]["reason"]


def test_a_machine_that_stood_still_makes_no_container_dirty() -> None:
    assert reason_of_call(3) is None
    assert reason_of_reset(3) is None


def test_what_outlives_many_kills_does() -> None:
    assert reason_of_call(2 * MIN_KILLS) == "dirty"
    assert reason_of_reset(2 * MIN_KILLS) == "dirty"
