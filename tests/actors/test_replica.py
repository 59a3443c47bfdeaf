"""The first start of a replica: an accident is no reason to end a run, what comes again is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from waiting import until

from agentgym.actors.process_group import NoAnswer, ProcessDied
from agentgym.actors.replica import Replica
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import UserError


class Group:
    """A process group whose start ends as planned."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.dead = asyncio.get_running_loop().create_future()

    async def start(self, *, timeout_s: float) -> None:
        if self.error is not None:
            raise self.error

    def give_up(self, reason: str) -> None:
        self.dead.set_result(reason)

    async def stop(self, *, timeout_s: float) -> None:
        assert self.dead.done() or not isinstance(self.error, NoAnswer), "one that hangs is killed, not asked to end"


def replica(errors: Sequence[Exception | None]) -> Replica:
    plan = iter(errors)
    settings = ServiceSettings(backoff_s=0.001, max_respawns=5)
    return Replica("one", lambda name: Group(next(plan)), settings=settings, admit=None, changed=lambda: None)


@pytest.mark.parametrize("error", [ProcessDied("killed"), NoAnswer("it did not answer start within 300 s")])
async def test_one_that_dies_or_hangs_in_its_first_start_is_started_once_more(error: Exception) -> None:
    one = replica([error, None])
    task = asyncio.create_task(one.supervise())
    await until(lambda: one.up or task.done())
    assert one.up and one.respawns == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_one_that_dies_in_its_first_start_again_or_says_why_ends_the_service() -> None:
    with pytest.raises(ProcessDied, match="again"):
        await replica([ProcessDied("killed"), ProcessDied("again")]).supervise()
    with pytest.raises(NoAnswer, match="again"):
        await replica([NoAnswer("hangs"), NoAnswer("again")]).supervise()
    with pytest.raises(UserError, match="no such model"):
        await replica([UserError("no such model")]).supervise()
