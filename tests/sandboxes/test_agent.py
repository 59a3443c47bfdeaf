"""The agent's stream: what it takes, what it answers, and what ends its container."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from agentgym.sandbox import RunStatus, SandboxBackend, SandboxLost
from agentgym_sandboxes.agent import frames
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.host.bundle import MAX_ARGUMENT_BYTES, agent_argument


def test_the_agent_fits_into_one_argument_and_names_its_files() -> None:
    argument = agent_argument()
    assert len(argument) < MAX_ARGUMENT_BYTES * 3 // 4
    assert argument.isascii()
    program = argument.replace(
        "from agent.main import main\nmain(sys.argv[1:])", "import agent.frames\nagent.frames.write_all(-1, b'x')"
    )
    said = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False).stderr
    assert 'File "agent/frames.py", line ' in said


def test_a_stream_of_many_small_pieces_is_not_copied_over_and_over() -> None:
    """Each byte is copied a fixed number of times: 32 MiB in pieces of 4 KiB are read in a moment."""
    stream = memoryview(frames.encode({"id": 1}, [b"x" * (1 << 24), b"y" * (1 << 24)]))
    reader = frames.FrameReader()
    found = [frame for at in range(0, len(stream), 4096) for frame in reader.feed(bytes(stream[at : at + 4096]))]
    assert [len(blob) for blob in found[0].blobs] == [1 << 24, 1 << 24]


@pytest.mark.parametrize("sizes", [None, 5, [1, 1], [-1, 4], [True, 2], ["3"], [1 << 40]])
def test_blobs_that_are_not_as_the_header_says_are_refused(sizes: object) -> None:
    good = frames.encode({"id": 1}, [b"abc"])
    bad = good.replace(b'"sizes": [3]', b'"sizes": ' + json.dumps(sizes).encode())
    head_size = len(bad) - 8 - 3
    with pytest.raises(frames.FrameError):
        frames.FrameReader().feed(head_size.to_bytes(4, "big") + bad[4:])


def container_of(session: object) -> Container:
    return session._container  # type: ignore[attr-defined, no-any-return]


@pytest.mark.asyncio(loop_scope="session")
async def test_many_megabytes_cross_both_ways_at_once(docker: SandboxBackend) -> None:
    """While the agent writes a frame it reads one: else both sides would wait for each other."""
    async with docker.session() as session:
        container = container_of(session)
        data = b"\0" * (60 << 20)
        await session.write("big", data)
        reading = asyncio.create_task(session.read("big", max_bytes=1 << 26))
        for _ in range(2):
            with pytest.raises(SandboxLost, match="no operation 'none'"):
                await container.ask("none", {}, [data], 60.0)
        assert len(await reading) == len(data)
        assert (await session.run("1 + 1")).stdout == "2\n"


@pytest.mark.asyncio(loop_scope="session")
async def test_an_operation_that_is_none_gets_an_error(docker: SandboxBackend) -> None:
    async with docker.session() as session:
        container = container_of(session)
        for op in ("", "session", "session.none", "proxy.none", "none.none"):
            with pytest.raises(SandboxLost, match="no operation"):
                await container.ask(op, {}, (), 20.0)
        assert (await session.run("1 + 1")).status is RunStatus.OK


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        b"\x00\x00\x00\x02\x00\x00\x00\x00{]",
        b"\x00\x00\x00\x02\x00\x00\x00\x00[]",
        frames.encode({"id": 1}),
        frames.encode({"op": "program", "id": 1}, [b"", b""]),
        frames.encode({"op": "session.run", "id": [1], "limits": 5}, [b"", b""]),
    ],
)
async def test_frames_that_are_none_end_the_container(docker: SandboxBackend, data: bytes) -> None:
    async with docker.session() as session:
        container = container_of(session)
        container._send(data)
        with pytest.raises(SandboxLost):
            await session.run("1")
