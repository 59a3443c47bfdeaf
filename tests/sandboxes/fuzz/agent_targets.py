"""An agent that answers anything: the host tells that the sandbox is lost, or takes what it can use."""

from __future__ import annotations

import asyncio
from random import Random
from typing import cast

from pool_fakes import FakeAgent

from agentgym.errors import InfraError
from agentgym.sandbox import CallCase, FileRefused, GradeRequest, Limits, RunStatus
from agentgym.types import SandboxSpec
from agentgym_sandboxes.agent import frames
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.engine import Engine
from agentgym_sandboxes.docker.outbound import Outbound
from agentgym_sandboxes.docker.sessions import DockerSession
from agentgym_sandboxes.host.grading import grade_blobs, verdict_of
from agentgym_sandboxes.host.running import result_of
from agentgym_sandboxes.network.streams import ByteStream
from fuzz import mutation
from fuzz.running import Target

GOOD: frames.Header = {
    "reason": None, "exits": {"program": 0, "serve": 0}, "truncated": False, "cpu_s": 0.1, "memory_mib": 9.0,
    "wall_s": 0.1, "names": ["notes", "stdout", "stderr", "answers"], "home": "/work/1", "refused": None,
    "port": 5,
    "state_lost": False,
}  # fmt: skip
SHORT = Limits(wall_s=0.05)


class HostileEngine(FakeAgent):
    """Its one container answers every frame with spoiled ones."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random

    async def start(self, name: str) -> None:
        self.say({"id": 0, "python": "3.11.2"})

    def hear(self, frame: frames.Frame) -> None:
        asyncio.get_running_loop().call_soon(self.answer, frame.header["id"])

    close = FakeAgent.abort

    def answer(self, number: frames.Field) -> None:
        random = self.random
        header: dict[str, object] = {**GOOD, "id": number}
        for _ in range(random.choice((0, 1, 1, 2, 4))):
            key = random.choice([*header, "error", "what", "connection", "bytes", "limit", "used", "allowed"])
            if key == "id":
                header["id"] = random.choice((None, [], {}, "x", True, 1.5))
            elif random.random() < 0.4:
                header.pop(key, None)
            else:
                header[key] = random.choice(
                    (mutation.random_leaf(random), [], {}, ["x"], {"program": "x"}, "proxy", "dirty")
                )
        if random.random() < 0.3:
            self.say({**cast(frames.Header, header), "event": random.choice(("proxy", "x", ""))}, [b"x"])
        blobs = [b"", b"out", b"err", b'["ok"]\n["r", 1]\n'][: random.choice((0, 1, 2, 4, 4, 4))]
        self.say(cast(frames.Header, header), blobs)


async def answers(random: Random) -> None:
    """Every call ends with a result of its type, or as broken infrastructure."""
    engine = HostileEngine(random)
    config = DockerConfig(ping_timeout_s=0.05, start_timeout_s=60)
    container = await Container.start(
        cast(Engine, engine), config, "image", "owner", remapped=False, on_change=lambda: None
    )
    cases = (CallCase(args=(1,), expected=1),)
    request = GradeRequest(code="", entry="f", cases=cases)
    session = DockerSession(container, 64)

    async def serve(stream: ByteStream) -> None:
        await stream.read()

    outbound = Outbound(container, serve, 3)
    try:
        roll = random.randrange(7)
        if roll == 0:
            await container.ping()
        elif roll == 1:
            result = result_of(await container.call("program", [b"", b""], SHORT))
            assert isinstance(result.status, RunStatus) and isinstance(result.stdout, str)
        elif roll == 2:
            verdict = verdict_of(await container.call("grade", grade_blobs(request), SHORT), request)
            assert len(verdict.results) == 1
        elif roll == 3:
            await session.open(DockerConfig(start_timeout_s=0.05), {}, SandboxSpec(session=True))
            assert isinstance((await session.run("", limits=SHORT)).status, RunStatus)
        elif roll == 4:
            assert isinstance(await session.read("a"), bytes)
        elif roll == 5:
            assert all(info.size >= 0 for info in await session.files())
        else:
            assert 0 < await outbound.listen() < 65536
            await asyncio.sleep(0)
    except (InfraError, FileRefused):
        pass
    finally:
        await outbound.close()
        await container.close()


TARGETS = [Target(name="agent-answers", case=answers)]
