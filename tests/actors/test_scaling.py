"""A service that grows and shrinks: when it decides to, and what a replica that comes or goes may and may not do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from counting import Counting
from waiting import until

from agentgym.actors.process_group import ProcessDied
from agentgym.actors.scaling import HOLD_S, Scaler, ScalingSettings, keep_scaled
from agentgym.actors.service import Service
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError

SCALING = ScalingSettings(min_replicas=1, max_replicas=4, grow_after_s=5.0, shrink_after_s=60.0)


def decided(scaler: Scaler, demands: list[float], *, replicas: int, since_s: float = 0.0) -> list[int]:
    """What is wanted second after second, when nobody does it."""
    return [scaler.wanted(since_s + second, demand=one, replicas=replicas) for second, one in enumerate(demands)]


def test_grows_for_a_queue_that_lasts_and_to_what_it_needs_at_once() -> None:
    assert decided(Scaler(SCALING), [2.6] * 6, replicas=1) == [1, 1, 1, 1, 1, 3]
    assert max(decided(Scaler(SCALING), [9.0] * 6, replicas=1)) == 4, "and never beyond the most"


def test_a_short_queue_or_one_with_a_gap_starts_nothing() -> None:
    assert set(decided(Scaler(SCALING), [1.2] * 100, replicas=1)) == {1}
    assert set(decided(Scaler(SCALING), ([3.0] * 5 + [0.5]) * 20, replicas=1)) == {1}


def test_shrinks_one_by_one_when_even_the_peak_left_a_replica_idle() -> None:
    scaler = Scaler(SCALING)
    assert decided(scaler, [1.3] * 61, replicas=3)[-2:] == [3, 2], "0.7 x 2 places are enough for it"
    assert scaler.wanted(61, demand=1.3, replicas=2) == 2
    assert set(decided(Scaler(SCALING), [0.0] * 100, replicas=1)) == {1}, "and never below the fewest"


def test_a_burst_within_the_time_keeps_the_replicas() -> None:
    assert set(decided(Scaler(SCALING), ([0.0] * 50 + [2.9]) * 5, replicas=3)) == {3}


def test_between_the_two_thresholds_nothing_changes() -> None:
    for number in (2, 3):
        for demand in (number - 0.25, float(number), number + 0.25):
            assert set(decided(Scaler(SCALING), [demand] * 200, replicas=number)) == {number}


def test_a_replica_that_could_not_be_kept_holds_growth_for_longer_each_time() -> None:
    scaler = Scaler(SCALING)
    decided(scaler, [3.0] * 6, replicas=1)
    scaler.lost(5.0)
    assert scaler.wanted(5.0 + HOLD_S - 1, demand=3.0, replicas=1) == 1
    assert scaler.wanted(5.0 + HOLD_S, demand=3.0, replicas=1) == 3
    scaler.lost(100.0)
    assert scaler.wanted(100.0 + HOLD_S, demand=3.0, replicas=1) == 1


class FakeGroup:
    """A process group without processes. Its calls wait until `answers` is set; broken: it can't start."""

    num_answers = 0

    def __init__(self, name: str, answers: asyncio.Event, *, broken: bool) -> None:
        self.name, self.pids, self.broken = name, [0], broken
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answers = answers
        self.stopped = False

    async def start(self, *, timeout_s: float) -> None:
        if self.broken:
            raise InfraError("no memory for it")

    async def stop(self, *, timeout_s: float) -> None:
        await asyncio.sleep(0)
        self.stopped = True

    def give_up(self, reason: str) -> None:
        self.dead.set_result(reason)

    async def call(self, method: object, *args: object, timeout_s: float | None) -> list[None]:
        return [None]  # a probe

    async def call_one(self, method: object, *args: object, timeout_s: float | None) -> str:
        waited = {asyncio.ensure_future(self.answers.wait()), self.dead}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if self.dead.done():
            raise ProcessDied(self.dead.result())
        return self.name


class Fakes:
    """A service of fake groups. broken: names of those that cannot start."""

    def __init__(self, *, least: int, replicas: int, most: int, broken: tuple[str, ...] = ()) -> None:
        self.answers = asyncio.Event()
        self.groups: dict[str, FakeGroup] = {}

        def launch(index: int, name: str) -> Any:
            assert name not in self.groups, "no two process groups have one name"
            self.groups[name] = FakeGroup(name, self.answers, broken=name in broken)
            return self.groups[name]

        settings = ServiceSettings(min_replicas=least, backoff_s=0.001, max_respawns=1)
        self.service: Service[Counting] = Service(
            "s", launch, num_replicas=replicas, max_replicas=most, settings=settings
        )

    def ask(self, count: int) -> list[asyncio.Task[Any]]:
        return [asyncio.create_task(self.service.route(Counting.add, 1)) for _ in range(count)]

    async def kill(self, index: int, *names: str) -> None:
        """One life of a replica after another, each when it is up."""
        replica = self.service.replicas[index]
        for name in names:
            await until(lambda name=name: replica.up and replica.group.name == name)
            self.groups[name].give_up("killed")

    async def up(self, *names: str) -> None:
        """Wait until just these are up."""
        await until(lambda: {one.group.name for one in self.service.replicas if one.up} == set(names))


@pytest.fixture
def fakes() -> Callable[..., Any]:
    @asynccontextmanager
    async def make(**settings: Any) -> AsyncIterator[Fakes]:
        made = Fakes(**settings)
        await made.service.start()
        yield made
        await made.service.close()
        assert all(group.stopped for group in made.groups.values())

    return make


async def test_a_replica_leaves_when_it_has_answered_and_gets_nothing_new(fakes) -> None:
    async with fakes(least=1, replicas=2, most=2) as f:
        calls = f.ask(3)  # the first turn is s0's
        await until(lambda: f.service.demand == 3)
        assert f.service.shrink()
        calls += f.ask(4)
        await until(lambda: [one.load for one in f.service.replicas] == [6, 1])
        assert not f.groups["s1"].stopped
        f.answers.set()
        assert sorted(await asyncio.gather(*calls)) == ["s0"] * 6 + ["s1"], "the one with the fewest requests leaves"
        await until(lambda: f.groups["s1"].stopped)
        assert f.service.get_metrics()["respawns_total"] == 0, "it did not die"
        f.service.grow(2)
        await f.up("s0", "s1-1")


async def test_a_leaving_replica_that_is_needed_again_stays(fakes) -> None:
    async with fakes(least=1, replicas=2, most=3) as f:
        calls = f.ask(2)
        await until(lambda: f.service.demand == 2)
        assert f.service.shrink()
        f.service.grow(2)
        f.answers.set()
        await asyncio.gather(*calls)
        await f.up("s0", "s1")
        assert set(f.groups) == {"s0", "s1"}, "without a new process"


async def test_a_leaving_replica_that_dies_is_not_started_again_and_loses_no_request(fakes) -> None:
    async with fakes(least=1, replicas=2, most=2) as f:
        calls = f.ask(2)
        await until(lambda: f.service.demand == 2)
        assert f.service.shrink()
        f.groups["s1"].give_up("killed")
        await until(lambda: [one.load for one in f.service.replicas] == [2, 0])
        f.answers.set()
        assert await asyncio.gather(*calls) == ["s0", "s0"]
        await f.up("s0")
        assert set(f.groups) == {"s0", "s1"}


async def test_never_shrinks_below_what_can_do_the_work(fakes) -> None:
    async with fakes(least=1, replicas=2, most=2) as f:
        assert not f.service.shrink(holds=lambda replica: False)
        assert f.service.shrink(holds=lambda replica: replica.name == "s0") and f.service.staying[0].name == "s0"
        assert not f.service.shrink()


async def test_a_new_replica_that_cannot_start_costs_nothing(fakes) -> None:
    async with fakes(least=1, replicas=1, most=2, broken=("s1",)) as f:
        f.service.grow(2)
        await until(lambda: f.service.lost == 1)
        f.answers.set()
        assert await asyncio.gather(*f.ask(2)) == ["s0", "s0"]


async def test_of_more_than_the_fewest_one_may_die_too_often(fakes) -> None:
    async with fakes(least=1, replicas=2, most=2) as f:
        await f.kill(0, "s0", "s0-1")
        await until(lambda: f.service.lost == 1)
        f.answers.set()
        assert await asyncio.gather(*f.ask(2)) == ["s1", "s1"]
        await f.kill(1, "s1", "s1-1")
        await until(lambda: f.service.failed)
        with pytest.raises(InfraError, match="s1 died 2 times in a row"):
            await f.service.route(Counting.add, 1)


async def test_follows_a_load_that_comes_and_goes(fakes) -> None:
    settings = replace(SCALING, grow_after_s=0.02, shrink_after_s=0.04, look_every_s=0.005)

    async def slots() -> float:
        return 2.0

    async with fakes(least=1, replicas=1, most=4) as f:
        scaled = asyncio.create_task(keep_scaled(f.service, settings, slots=slots, holds=lambda replica: True))
        calls = f.ask(6)
        await f.up("s0", "s1", "s2")
        f.answers.set()
        await asyncio.gather(*calls)
        await until(lambda: len(f.service.staying) == 1)
        metrics = f.service.get_metrics()
        assert (metrics["grown_total"], metrics["shrunk_total"]) == (2, 2)
        scaled.cancel()
