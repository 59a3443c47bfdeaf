"""One container from the owner's side, with an agent that answers when it is told to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from pool_fakes import FakeAgent

from agentgym.errors import UserError
from agentgym.sandbox import Limits, SandboxLost
from agentgym.testing import fast
from agentgym_sandboxes.agent import frames
from agentgym_sandboxes.docker import container as module
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.sessions import BACKSTOP_S, DockerSession

ANSWER: frames.Header = {"reason": None, "exits": {"program": 0}, "truncated": False, "cpu_s": 0.0, "wall_s": 0.0,
                         "memory_mib": 1.0, "names": []}  # fmt: skip


class Agent(FakeAgent):
    """Keeps what it is asked in `asked`."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []

    async def start(self, name: str) -> None:
        self.answer(0)

    def hear(self, frame: frames.Frame) -> None:
        self.asked.append((str(frame.header["op"]), cast(int, frame.header["id"])))

    @property
    def ops(self) -> list[str]:
        return [op for op, _ in self.asked]

    def answer(self, number: int) -> None:
        self.say({**ANSWER, "id": number})


@asynccontextmanager
async def started() -> AsyncIterator[tuple[Agent, Container]]:
    agent, config = Agent(), DockerConfig()
    container = await Container.start(
        cast(Engine, agent), config, "image", "owner", remapped=False, on_change=lambda: None
    )
    try:
        yield agent, container
    finally:
        await container.close()


async def call(container: Container, blob: bytes = b"", limits: Limits | None = None) -> frames.Frame:
    container.reserved += 1  # as the pool does
    return await container.call("program", [blob, b""], limits or Limits())


async def test_a_call_that_can_not_be_sent_holds_no_slot() -> None:
    async with started() as (_, container):
        with pytest.raises(TypeError):
            await call(container, cast(bytes, "text"))
        assert container.reserved == 0 and container.lost is None and container.uses == 0


async def test_a_call_that_is_too_large_is_the_callers_mistake_and_costs_no_container() -> None:
    async with started() as (agent, container):
        with pytest.raises(UserError, match=r"a call of 129 MiB is too large.* 128 MiB"):
            await call(container, bytes(129 << 20))
        assert container.reserved == 0 and container.lost is None and not agent.asked


@fast
async def test_a_cancelled_call_that_its_agent_never_ends_costs_the_container_and_no_slot() -> None:
    async with started() as (agent, container):
        one = asyncio.create_task(call(container, limits=Limits(wall_s=1000.0)))
        await asyncio.sleep(1.0)
        one.cancel()
        await asyncio.sleep(1.0)
        assert agent.ops == ["program", "cancel"] and container.reserved == 1
        await asyncio.sleep(module.BACKSTOP_S)
        assert container.reserved == 0 and container.cause == "backstop"
        assert str(container.lost) == "its agent did not end a cancelled call"


@fast
async def test_a_cancelled_call_that_ends_in_time_costs_nothing() -> None:
    async with started() as (agent, container):
        one = asyncio.create_task(call(container))
        await asyncio.sleep(1.0)
        one.cancel()
        await asyncio.sleep(1.0)
        agent.answer(agent.asked[0][1])
        await asyncio.sleep(100.0)
        assert container.reserved == 0 and container.lost is None


@fast
async def test_an_operation_of_a_session_waits_for_the_end_of_one_that_was_cancelled() -> None:
    """One that its agent keeps waiting could not be cancelled: it would run later, for nobody."""
    async with started() as (agent, container):
        session = DockerSession(container, 64)
        limits = Limits(wall_s=1000.0)
        first = asyncio.create_task(session.run("1", limits=limits))
        await asyncio.sleep(1.0)
        first.cancel()
        second = asyncio.create_task(session.run("2", limits=limits))
        await asyncio.sleep(1.0)
        assert agent.ops == ["session.run", "session.cancel"]
        second.cancel()  # never sent, so there is nothing to end
        third = asyncio.create_task(session.run("3", limits=Limits(wall_s=1.0)))
        await asyncio.sleep(1.0)
        assert agent.ops == ["session.run", "session.cancel"]
        agent.answer(agent.asked[0][1])
        await asyncio.sleep(1.0)
        assert agent.ops == ["session.run", "session.cancel", "session.run"]
        agent.answer(agent.asked[2][1])
        assert (await third).status == "ok"


@fast
async def test_a_session_whose_agent_never_ends_a_cancelled_operation_is_lost() -> None:
    async with started() as (_, container):
        session = DockerSession(container, 64)
        first = asyncio.create_task(session.run("1", limits=Limits(wall_s=5.0)))
        await asyncio.sleep(1.0)
        first.cancel()
        with pytest.raises(SandboxLost, match="did not end a cancelled operation"):
            await session.run("2", limits=Limits(wall_s=1.0))
        assert 4.0 <= asyncio.get_running_loop().time() <= 6.0 + BACKSTOP_S


async def test_an_answer_that_lies_behind_much_else_is_not_late_because_our_loop_was_busy() -> None:
    """A stream is read piece by piece, so the deadline comes between two pieces."""
    async with started() as (agent, container):
        asking = asyncio.create_task(container.ask("ping", {}, (), 0.3))
        await asyncio.sleep(0)
        time.sleep(1.0)  # what a training step in this process does

        def read_on(pieces: int) -> None:
            if pieces:
                asyncio.get_running_loop().call_soon(read_on, pieces - 1)
            else:
                agent.answer(agent.asked[0][1])

        read_on(5)
        await asking
        assert container.lost is None
