"""The pools under thousands of random events: calls, cancels, losses, wear, slow and failing starts, closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from storms import run_storms

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, RunStatus, SandboxDirty, SandboxLost
from agentgym.testing import settle
from agentgym_sandboxes.agent.frames import Frame, Header
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.pool import Pool
from agentgym_sandboxes.docker.session_pool import SessionPool
from agentgym_sandboxes.host.answers import Crowded
from agentgym_sandboxes.host.meter import CallMeter

pytestmark = pytest.mark.hostile

NUM_EVENTS = 300


class Container:
    """As the real one: a slot is held until the agent has answered, whoever still waits for that."""

    def __init__(self, name: str, fate: Random, on_change: Callable[[], None]) -> None:
        self.name, self.fate, self.on_change = name, fate, on_change
        self.reserved = self.num_sessions = 0
        self.lost: str | None = None
        self.cause = "lost"
        self.worn = ""
        self.under_way: set[asyncio.Future[Frame]] = set()
        self.crowded = 0.05
        self.closed = False
        self.machine = None

    @property
    def usable(self) -> bool:
        return self.lost is None and not self.worn

    async def call(self, op: str, blobs: Sequence[bytes], limits: Limits, *, alone: bool) -> Frame:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Frame] = loop.create_future()
        self.under_way.add(answer)
        answer.add_done_callback(self._give_back)
        if self.lost is not None:
            answer.set_exception(SandboxLost(self.lost))
        loop.call_later(self.fate.choice((0.0, 0.1, 3.0)), self._answer, answer, blobs[0])
        return await asyncio.shield(answer)

    def _answer(self, answer: asyncio.Future[Frame], blob: bytes) -> None:
        if answer.done():
            return
        roll = self.fate.random()
        if roll < 0.05:
            answer.set_exception(SandboxDirty("dirty"))
            self.lose("dirty")
        elif roll < 0.05 + self.crowded:
            answer.set_exception(Crowded("crowded"))
        else:
            answer.set_result(Frame({}, [blob]))

    def _give_back(self, answer: asyncio.Future[Frame]) -> None:
        self.under_way.discard(answer)
        answer.exception()
        self.reserved -= 1
        self.on_change()

    def lose(self, cause: str) -> None:
        if self.lost is None:
            self.lost, self.cause = cause, cause
        for answer in list(self.under_way):
            if not answer.done():
                answer.set_exception(SandboxLost(cause))
        self.on_change()

    def wear(self, cause: str) -> None:
        self.worn = cause
        self.on_change()

    async def ask(
        self, op: str, header: Header, blobs: Sequence[bytes], timeout_s: float, *, cancel: str | None = None
    ) -> Frame:
        self.num_sessions += op == "session.open"
        await self.ping()
        return Frame({"home": "/", "reason": None}, [])

    async def ping(self) -> None:
        await asyncio.sleep(self.fate.choice((0.0, 0.01, 1.0)))
        if self.fate.random() < 0.02:
            self.lose("ping")
        if self.lost is not None:
            raise SandboxLost(self.lost)

    def notify(self, op: str, header: Header, blobs: Sequence[bytes] = ()) -> None: ...

    def on_event(self, kind: str, handler: Callable[[Frame], None]) -> None: ...

    def give_up(self, why: str) -> None:
        self.lose(why)

    async def close(self) -> None:
        self.lose("closed")
        await asyncio.sleep(self.fate.choice((0.0, 0.2, 5.0)))  # whoever is cancelled here comes again
        self.closed = True
        if self.fate.random() < 0.1:
            raise InfraError("not removed")


@dataclass
class Engine:
    """Starts containers, late or not at all."""

    fate: Random
    made: list[Container] = field(default_factory=list)
    num_starting: int = 0
    crowded: float = 0.05  # so many calls are

    async def start(self, on_change: Callable[[], None]) -> Container:
        self.num_starting += 1
        try:
            await asyncio.sleep(self.fate.choice((0.0, 0.2, 2.0)))
            if self.made and self.fate.random() < 0.2:
                raise InfraError(f"start failed for reason {self.fate.randrange(3)}")
            container = Container(f"c{len(self.made)}", self.fate, on_change)
            container.crowded = self.crowded
            self.made.append(container)
            return container
        finally:
            self.num_starting -= 1

    @property
    def alive(self) -> list[Container]:
        return [container for container in self.made if not container.closed]


@dataclass(frozen=True)
class Seen:
    by: bytes
    status: RunStatus = RunStatus.OK


class CallStorm:
    """Calls of all kinds on a pool."""

    def __init__(self, seed: int) -> None:
        self.fate = Random(seed)
        self.engine = Engine(self.fate, crowded=self.fate.choice((0.05, 0.6)))
        self.config = DockerConfig(
            pool_size=self.fate.randint(1, 4),
            slots=self.fate.randint(1, 3),
            spares=self.fate.choice((0, 1, 2, None)),
            lease_timeout_s=self.fate.choice((0.5, 20.0)),
        )
        self.pool = Pool(self.config, self.engine.start, self.config.pool_size, CallMeter(), self.went)
        self.calls: dict[int, asyncio.Task[Seen]] = {}
        self.cancelled: set[int] = set()

    async def went(self, name: str) -> bool:
        await asyncio.sleep(self.fate.choice((0.0, 0.1)))
        return self.fate.random() < 0.3

    async def play(self) -> None:
        await self.pool.start()
        for number in range(NUM_EVENTS):
            self.event(number)
            if self.fate.random() < 0.5:
                await asyncio.sleep(self.fate.choice((0.0, 0.0, 0.05, 1.0)))
            if self.fate.random() < 0.3:
                for _ in range(20):  # a call that was served may only be about to begin
                    await settle()
                    if self.num_reserved == self.num_under_way:
                        break
                self.check()
        if self.fate.random() < 0.5:
            await asyncio.wait(self.calls.values())
        closes = [asyncio.create_task(self.pool.close()) for _ in range(self.fate.randint(1, 2))]
        await asyncio.gather(*closes)
        await asyncio.wait(self.calls.values())
        for number, call in self.calls.items():
            if call.cancelled():
                assert number in self.cancelled
            elif call.exception() is not None:
                assert isinstance(call.exception(), InfraError)
            else:
                assert call.result() == Seen(str(number).encode())
        assert not self.engine.alive and not self.engine.num_starting
        assert all(c.reserved == 0 for c in self.engine.made)
        assert set(self.pool.gauges().values()) == {0} and not self.pool._with_suspect

    def event(self, number: int) -> None:
        roll = self.fate.random()
        if roll < 0.6:
            blobs = [str(number).encode()]
            call = self.pool.call("program", blobs, Limits(), lambda frame: Seen(frame.blobs[0]))
            self.calls[number] = asyncio.create_task(call)
        elif roll < 0.8 and self.calls:
            which = self.fate.choice(list(self.calls))
            self.cancelled.add(which)
            self.calls[which].cancel()
        elif roll < 0.9 and self.engine.alive:
            self.fate.choice(self.engine.alive).lose("lost")
        elif self.engine.alive:
            self.fate.choice(self.engine.alive).wear("uses")

    @property
    def num_reserved(self) -> int:
        return sum(container.reserved for container in self.engine.made)

    @property
    def num_under_way(self) -> int:
        """Slots that are in use."""
        slots = [
            self.config.slots if c.reserved == self.config.slots and len(c.under_way) == 1 else len(c.under_way)
            for c in self.engine.made
        ]
        return sum(slots)

    def check(self) -> None:
        pool, slots = self.pool, self.config.slots
        for container in self.engine.made:
            alone = len(container.under_way) == 1 and container.reserved == slots
            assert alone or container.reserved == len(container.under_way) <= slots, container.name
        serving = [c for c in pool._live if c.lost is None]
        num_kept = 0  # at most, for those that need a container alone
        for waiter in pool._waiting:
            if waiter.future.done():
                continue
            free = [c for c in serving if c.reserved + waiter.num_slots <= slots]
            assert waiter.is_suspect or len(free) <= num_kept
            assert sum(c not in pool._with_suspect for c in free) <= num_kept
            num_kept += waiter.num_slots > 1
        assert all(c.reserved > 0 for c in pool._with_suspect)
        assert len(pool._live) <= pool._size
        fresh = [c for c in pool._spare if not c.worn]
        most = pool._size + pool._num_for_worn
        assert len(pool._live) + len(fresh) + pool.num_starting <= most
        assert len(pool._spare) - len(fresh) <= pool._num_spares  # worn, until others have come
        assert pool.num_starting >= self.engine.num_starting
        assert pool._num_wanted <= 0 or pool._changed.is_set()
        held = {*pool._live, *pool._spare, *pool._to_remove}
        assert {c for c in self.engine.made if c.lost is None} <= held


class SessionStorm:
    """Sessions that are used, fail, are cancelled at any point, or never end."""

    def __init__(self, seed: int) -> None:
        self.fate = Random(seed)
        self.engine = Engine(self.fate)
        self.config = DockerConfig(
            max_sessions=self.fate.randint(1, 4),
            spare_sessions=self.fate.randint(0, 2),
            lease_timeout_s=self.fate.choice((0.5, 20.0)),
        )
        self.pool = SessionPool(self.config, self.engine.start)
        self.num_open = 0
        self.played: list[asyncio.Task[None]] = []
        self.cancelled: set[asyncio.Task[None]] = set()

    async def session(self) -> None:
        async with self.pool.session() as session:
            self.num_open += 1
            try:
                await asyncio.sleep(self.fate.choice((0.0, 0.3, 10.0)))
                if self.fate.random() < 0.2:
                    raise InfraError("the episode failed")
                await session.reset()
            finally:
                self.num_open -= 1

    async def play(self) -> None:
        for _ in range(NUM_EVENTS):
            self.event()
            if self.fate.random() < 0.6:
                await asyncio.sleep(self.fate.choice((0.0, 0.05, 1.0, 6.0)))
            if self.fate.random() < 0.3:
                await settle()
                self.check()
        if self.fate.random() < 0.5:
            await asyncio.wait(self.played)
        closes = [asyncio.create_task(self.pool.close()) for _ in range(self.fate.randint(1, 2))]
        await asyncio.gather(*closes)
        assert not self.engine.alive and not self.engine.num_starting
        began_s = asyncio.get_running_loop().time()
        await asyncio.wait(self.played)
        assert asyncio.get_running_loop().time() - began_s <= 12.0  # what sessions do by themselves
        for task in self.played:
            if task.cancelled():
                assert task in self.cancelled
            elif task.exception() is not None:
                assert isinstance(task.exception(), InfraError)
        assert all(container.num_sessions <= 1 for container in self.engine.made)
        assert self.pool.gauges() == {"sessions_open": 0, "sessions_waiting": 0}

    def event(self) -> None:
        roll = self.fate.random()
        if roll < 0.5:
            self.played.append(asyncio.create_task(self.session()))
        elif roll < 0.7 and self.played:
            which = self.fate.choice(self.played)
            self.cancelled.add(which)
            which.cancel()
        elif roll < 0.85 and self.engine.alive:
            self.fate.choice(self.engine.alive).lose("lost")
        elif self.engine.alive:
            self.fate.choice(self.engine.alive).wear("age")

    def check(self) -> None:
        pool, config = self.pool, self.config
        out = len(pool._leased) + len(pool._ending)
        assert self.num_open <= len(pool._leased) and out <= config.max_sessions
        assert len(pool._spare) + pool.num_starting <= config.spare_sessions + config.max_sessions
        waiting = pool.gauges()["sessions_waiting"]
        usable = [c for c in pool._spare if c.usable]
        assert not (waiting and usable and out < config.max_sessions)
        assert pool.num_starting >= self.engine.num_starting
        assert pool._num_wanted <= 0 or pool._changed.is_set() or pool._keeper is None
        held = {*pool._leased, *pool._ending, *pool._spare, *pool._to_remove}
        assert {c for c in self.engine.made if c.lost is None} <= held


@pytest.mark.parametrize("storm", [CallStorm, SessionStorm])
@pytest.mark.parametrize("block", range(4))
def test_whatever_happens_the_pools_keep_their_promises(storm: type[CallStorm | SessionStorm], block: int) -> None:
    run_storms(storm, range(10 * block, 10 * (block + 1)))
