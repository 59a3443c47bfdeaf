"""The first start of a replica: an accident is no reason to end a run, what comes again is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from waiting import until

from agentgym.actors.gate import Gate
from agentgym.actors.process_group import NoAnswer, ProcessDied
from agentgym.actors.replica import Replica
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import UserError


class Group:
    """A process group whose start ends as planned."""

    num_answers = 0

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.stopped = False
        self.dead = asyncio.get_running_loop().create_future()

    async def start(self, *, timeout_s: float) -> None:
        if self.error is not None:
            raise self.error

    def give_up(self, reason: str) -> None:
        self.dead.set_result(reason)

    async def call(self, method: object, *, timeout_s: float) -> None:
        raise NoAnswer("did not answer probe")

    def see_exits(self) -> None:
        self.give_up("killed by SIGKILL")

    async def stop(self, *, timeout_s: float) -> None:
        assert self.dead.done() or not isinstance(self.error, NoAnswer), "one that hangs is killed, not asked to end"
        await asyncio.sleep(0)
        self.stopped = True


def replica(errors: Sequence[Exception | None], starts: Gate | None = None, probe_every_s: float = 2.0) -> Replica:
    plan = iter(errors)
    settings = ServiceSettings(backoff_s=0.001, max_respawns=5, probe_every_s=probe_every_s)
    return Replica(
        "one", lambda name: Group(next(plan)), settings=settings, admit=None, changed=lambda one: None, starts=starts
    )


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


async def test_a_probe_without_an_answer_counts_only_where_the_process_has_not_ended() -> None:
    one = replica([None, ProcessDied("no more"), ProcessDied("no more")], probe_every_s=0.001)
    reasons: list[str] = []
    one._back_off = lambda reason: asyncio.sleep(0, reasons.append(reason))  # type: ignore[method-assign]
    task = asyncio.create_task(one.supervise())
    await until(lambda: bool(reasons))
    assert (reasons[0], one.missed_probes) == ("killed by SIGKILL", 0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class Busy(Group):
    """It answers no probe, but other calls during the first ten."""

    num_probes = 0

    async def call(self, method: object, *, timeout_s: float) -> None:
        self.num_probes += 1
        self.num_answers += self.num_probes <= 10
        await super().call(method, timeout_s=timeout_s)

    def see_exits(self) -> None: ...


async def test_a_process_that_answers_other_calls_is_alive_though_it_misses_probes() -> None:
    """With 12,000 calls at once a probe waits behind them."""
    busy = Busy(None)
    settings = ServiceSettings(probe_every_s=0.001)
    one = Replica("one", lambda name: busy, settings=settings, admit=None, changed=lambda one: None)
    assert "3 probes in a row failed" in await one._until_dead(busy)
    assert (busy.num_probes, one.missed_probes) == (13, 3)


class Answering(Group):
    """Whenever one looks, it has answered another call."""

    looks = num_probes = 0

    async def call(self, method: object, *, timeout_s: float) -> None:
        self.num_probes += 1

    @property
    def num_answers(self) -> int:  # type: ignore[override]
        self.looks += 1
        return self.looks


async def test_a_process_that_answers_other_calls_is_not_probed() -> None:
    group = Answering(None)
    settings = ServiceSettings(probe_every_s=0.001)
    one = Replica("one", lambda name: group, settings=settings, admit=None, changed=lambda one: None)
    watching = asyncio.create_task(one._until_dead(group))
    await until(lambda: group.looks > 20)
    group.give_up("killed")
    assert await watching == "killed" and group.num_probes == 0


async def test_a_closed_gate_is_waited_for_and_closes_when_a_start_that_failed_has_ended() -> None:
    starts = Gate()
    await starts.close()
    one = replica([ProcessDied("killed"), None], starts)
    task = asyncio.create_task(one.supervise())
    await asyncio.sleep(0.01)
    assert not hasattr(one, "group"), "it was started"
    starts.open()
    while not hasattr(one, "group"):
        await asyncio.sleep(0)
    first = one.group
    assert not first.stopped
    await starts.close()
    assert first.stopped
    await asyncio.sleep(0.05)
    assert one.group is first and not one.up
    starts.open()
    await until(lambda: one.up or task.done())
    assert one.up and one.group is not first
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
