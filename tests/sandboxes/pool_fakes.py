"""Containers that only pretend, and what starts them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

from agentgym.errors import InfraError
from agentgym.sandbox import Limits, RunStatus, SandboxDirty, SandboxLost
from agentgym_sandboxes.agent.frames import Frame, FrameReader, Header, encode
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.pool import Pool
from agentgym_sandboxes.host.meter import CallMeter


class FakeContainer:
    """Answers when told to; counts how many calls it serves at a time."""

    def __init__(self, name: str, on_change: Callable[[], None], max_uses: int) -> None:
        self.name, self.reserved, self.lost, self.cause = name, 0, None, "lost"
        self.on_change, self.max_uses = on_change, max_uses
        self.uses = self.most_at_a_time = 0
        self.failures: list[InfraError] = []
        self.go = asyncio.Event()
        self.go.set()
        self.closed = False

    @property
    def worn(self) -> str:
        return "uses" if self.uses >= self.max_uses else ""

    async def call(self, op: str, blobs: Sequence[bytes], limits: Limits, *, alone: bool) -> Frame:
        self.uses += 1
        self.most_at_a_time = max(self.most_at_a_time, self.reserved)
        try:
            await self.go.wait()
            if self.failures:
                error = self.failures.pop()
                if isinstance(error, SandboxDirty):
                    self.cause = "dirty"
                self.lost = str(error)
                raise error
            return Frame({"by": self.name}, [])
        finally:
            self.reserved -= 1
            self.on_change()

    async def ping(self) -> None:
        pass

    async def close(self) -> None:
        self.closed = True


class FakeSession:
    """A container for sessions: answers every operation with an empty end; `answers` come first."""

    def __init__(self, name: str, on_change: Callable[[], None], max_uses: int) -> None:
        self.name = name
        self.machine = None
        self.lost: str | None = None
        self.closed = False
        self.answers: list[Header] = []
        self.asked: list[str] = []
        self.num_pings = 0
        self.silent = False

    @property
    def usable(self) -> bool:
        return self.lost is None

    async def ask(
        self, op: str, header: Header, blobs: Sequence[bytes], timeout_s: float, *, cancel: str | None = None
    ) -> Frame:
        if self.lost is not None:
            raise SandboxLost(self.lost)
        self.asked.append(op)
        answer: Header = {"home": "/work/home", "reason": None, "refused": None}
        return Frame({**answer, **(self.answers.pop(0) if self.answers else {})}, [b""])

    def notify(self, op: str, header: Header, blobs: Sequence[bytes] = ()) -> None: ...

    def on_event(self, kind: str, handler: Callable[[Frame], None]) -> None: ...

    def give_up(self, why: str) -> None:
        self.lost = why

    async def ping(self) -> None:
        self.num_pings += 1
        if self.silent:
            self.lost = "silent"
            raise SandboxLost("silent")

    async def close(self) -> None:
        self.lost, self.closed = "closed", True


class FakeAgent:
    """An engine with one container, and the transport of its streams. A test says what its agent does when it hears
    a frame, and may have it say one."""

    def __init__(self) -> None:
        self.protocol: asyncio.Protocol | None = None
        self.removed = False
        self._reader = FrameReader()

    async def create(self, settings: object, name: str) -> str:
        return name

    async def attach(self, name: str, protocol_factory: Callable[[], asyncio.Protocol]) -> Self:
        self.protocol = protocol_factory()
        return self

    async def start(self, name: str) -> None: ...

    async def remove(self, name: str) -> None:
        self.removed = True

    def write(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            self.hear(frame)

    def is_closing(self) -> bool:
        return self.protocol is None

    def abort(self) -> None:
        self.protocol = None

    def hear(self, frame: Frame) -> None: ...

    def say(self, header: Header, blobs: Sequence[bytes] = ()) -> None:
        if self.protocol is not None:
            data = encode(header, [*blobs])
            self.protocol.data_received(struct.pack(">BxxxI", 1, len(data)) + data)


class Factory:
    """Starts fake containers; the starts in `failing` fail."""

    def __init__(
        self,
        max_uses: int = 1000,
        failing: Mapping[int, InfraError] | None = None,
        kind: type[FakeContainer] = FakeContainer,
    ) -> None:
        self.made: list[FakeContainer] = []
        self.num_starts = 0
        self.max_uses, self.failing = max_uses, failing or {}
        self.kind = kind
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, on_change: Callable[[], None]) -> FakeContainer:
        self.num_starts += 1
        number = self.num_starts
        await asyncio.sleep(0)
        await self.go.wait()
        if number in self.failing:
            raise self.failing[number]
        container = self.kind(f"c{number}", on_change, self.max_uses)
        self.made.append(container)
        return container


class Fate:
    """Says which lost containers went down with their engine."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def __call__(self, name: str) -> bool:
        return name in self.names


@dataclass(frozen=True)
class Seen:
    """An answer; by: the container that gave it."""

    by: str
    status: RunStatus = RunStatus.OK


@asynccontextmanager
async def started(
    factory: Factory | None = None, *, fate: Fate | None = None, **options: object
) -> AsyncIterator[tuple[Factory, Pool]]:
    factory = factory or Factory()
    config = DockerConfig(**{"slots": 2, "spares": 0, "lease_timeout_s": 60.0, **options})  # type: ignore[arg-type]
    pool = Pool(config, factory, config.pool_size or 2, CallMeter(), fate or Fate())
    await pool.start()
    try:
        yield factory, pool
    finally:
        factory.go.set()
        await pool.close()
        assert all(container.closed for container in factory.made)


async def call(pool: Pool) -> str:
    seen = await pool.call("grade", [b""], Limits(), lambda frame: Seen(str(frame.header["by"])))
    return seen.by


def counted(pool: Pool, name: str) -> int:
    return pool._meter.counts[name]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)
