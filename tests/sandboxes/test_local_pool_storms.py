"""The pool of local boxes under random events, with boxes that only pretend; then with real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import cast

import pytest
from pool_fakes import until
from storms import run_storms

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import Limits, SandboxUnavailable
from agentgym.testing import settle
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.local.box import Box
from agentgym_sandboxes.local.pool import Pool
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

pytestmark = pytest.mark.hostile

NUM_EVENTS = 200
FOREVER = Limits(wall_s=60.0, cpu_s=60)


class FakeBox:
    """Ends late, and once; whoever else asks waits for that."""

    start_s = 0.1

    def __init__(self, fate: Random) -> None:
        self.fate = fate
        self.alive, self.gone = True, False
        self.on_gone: Callable[[], None] | None = None
        self.ending: asyncio.Task[None] | None = None

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        self.on_gone = on_gone

    def die(self) -> None:
        self.alive = False
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    async def end(self) -> bool:
        if self.ending is None:
            self.alive = False
            self.ending = asyncio.create_task(asyncio.sleep(self.fate.choice((0.0, 0.1, 2.0))))
        await asyncio.shield(self.ending)
        self.gone = True
        return True


class Storm:
    def __init__(self, seed: int) -> None:
        self.fate = Random(seed)
        self.made: list[FakeBox] = []
        self.num_slots, self.num_spares = self.fate.randint(1, 4), self.fate.randint(0, 3)
        self.pool = Pool(
            cast("Callable[[], asyncio.Future[Box]]", self.start_box),
            CallMeter(),
            num_spares=self.num_spares,
            num_slots=self.num_slots,
            num_starts=2,
            lease_timeout_s=self.fate.choice((0.5, 20.0)),
        )
        self.calls: list[asyncio.Task[None]] = []
        self.cancelled: set[asyncio.Task[None]] = set()
        self.num_busy = 0

    async def start_box(self) -> FakeBox:
        await asyncio.sleep(self.fate.choice((0.0, 0.1, 1.0)))
        if self.made and self.fate.random() < 0.1:
            raise SandboxUnavailable("it did not start")
        self.made.append(FakeBox(self.fate))
        return self.made[-1]

    async def call(self) -> None:
        async with self.pool.slot():
            self.num_busy += 1
            try:
                boxes = await self.pool.take(self.fate.randint(1, 2))
                try:
                    await asyncio.sleep(self.fate.choice((0.0, 0.2, 3.0)))
                finally:
                    await self.pool.give_back(boxes)
            finally:
                self.num_busy -= 1

    async def play(self) -> None:
        await self.pool.start()
        for _ in range(NUM_EVENTS):
            roll = self.fate.random()
            alive = [box for box in self.made if box.alive]
            if roll < 0.6:
                self.calls.append(asyncio.create_task(self.call()))
            elif roll < 0.85 and self.calls:
                which = self.fate.choice(self.calls)
                self.cancelled.add(which)
                which.cancel()
            elif alive:
                self.fate.choice(alive).die()
            if self.fate.random() < 0.6:
                await asyncio.sleep(self.fate.choice((0.0, 0.05, 1.0)))
            if self.fate.random() < 0.3:
                await settle()
                assert self.num_busy == self.pool.num_busy <= self.num_slots
                assert self.pool.num_spares + self.pool._num_starting <= self.num_spares + 1
                assert not (self.pool.num_waiting and self.pool.num_busy < self.num_slots)
                assert {box for box in self.made if not box.gone} <= self.pool._boxes
        if self.fate.random() < 0.5:
            await asyncio.wait(self.calls)
        await self.pool.close()
        if all(call.done() for call in self.calls):
            assert all(box.gone for box in self.made)
        await asyncio.wait(self.calls)
        assert all(box.gone for box in self.made) and not self.pool._boxes
        for call in self.calls:
            if call.cancelled():
                assert call in self.cancelled
            else:
                assert call.exception() is None or isinstance(call.exception(), InfraError)


@pytest.mark.parametrize("block", range(2))
def test_whatever_happens_no_box_is_forgotten_and_no_slot_is_lost(block: int) -> None:
    run_storms(Storm, range(20 * block, 20 * (block + 1)))


def make() -> UnsafeSubprocessBackend:
    return UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True, slots=2, spares=1))


async def test_starts_and_closes_at_once_take_turns() -> None:
    backend = make()
    await asyncio.gather(backend.start(), backend.start())
    pool = backend._pool
    assert pool is not None
    call = asyncio.create_task(backend.run("while True: pass", limits=FOREVER))
    await until(lambda: pool.num_busy >= 1)
    closes = [asyncio.create_task(backend.close()) for _ in range(3)]
    await asyncio.sleep(0)
    closes[0].cancel()  # it goes on
    await asyncio.gather(*closes[1:])
    with pytest.raises(InfraError):
        await call
    assert not pool._boxes
    starting = asyncio.create_task(backend.start())
    await asyncio.sleep(0)
    await backend.close()
    await starting
    with pytest.raises(SandboxUnavailable, match="not started"):
        await backend.run("pass")


async def test_calls_from_another_event_loop_are_refused() -> None:
    async with make() as backend:
        with pytest.raises(UserError, match="in another event loop"):
            await asyncio.to_thread(asyncio.run, backend.run("pass"))
        assert (await backend.run("print(1)")).stdout == "1\n"
