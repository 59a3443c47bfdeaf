"""Machines that wait for a controller: `agentgym host`, and the launcher that attaches to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import psutil
import pytest
from waiting import LONG_S, until

from agentgym.actors.host_process import read_hello
from agentgym.actors.launchers import AttachLauncher
from agentgym.actors.launchers.attach import parse
from agentgym.errors import UserError
from agentgym.recipe import build_recipe

PROGRAM = """
import asyncio, sys
from counting import Counting
from agentgym.actors.launchers import AttachLauncher
from agentgym.actors.runtime import Runtime

async def main():
    async with Runtime(launcher=AttachLauncher(machines=tuple(sys.argv[1:]))):
        groups = [await Counting.options(procs=2).as_actor(10) for _ in range(2)]
        for group in groups:
            print(*group.pids, await group.call(Counting.add, 1, timeout_s=60), flush=True)
        if sys.stdin.readline():
            await asyncio.gather(*(group.stop() for group in groups))

asyncio.run(main())
"""


@contextmanager
def lent_machine() -> Iterator[tuple[psutil.Popen, str]]:
    """The process of `agentgym host`, and what a launcher calls it."""
    command = [sys.executable, "-m", "agentgym.cli.main", "host", "--port", "0"]
    with psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            port = process.stdout.readline().split()[-1]
            yield process, f"127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.hostile
async def test_a_lent_machine_serves_one_controller_after_another_and_keeps_nothing_of_either() -> None:
    with lent_machine() as (one, first), lent_machine() as (other, second):
        for end in ("killed", "in order"):
            command = [sys.executable, "-c", PROGRAM, first, second]
            with psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as controller:
                lines = [controller.stdout.readline() for _ in range(2)]
                actors = [psutil.Process(int(pid)) for line in lines for pid in line.split()[:2]]
                assert all(line.endswith("[11, 11]\n") for line in lines), lines
                assert [actor.parents()[1] for actor in actors] == [one, one, other, other]
                if end == "killed":
                    controller.kill()
                else:
                    controller.communicate("end\n")
                    assert controller.returncode == 0
            for actor in actors:
                await until(lambda process=actor: not process.is_running(), timeout_s=LONG_S)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """A machine with something else on its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def refusal(machine: str, wait_s: float) -> str:
    with pytest.raises(UserError) as refused:
        async with AttachLauncher(machines=(machine,), wait_s=wait_s).hosts(None):
            pass
    return str(refused.value)


async def test_a_machine_that_is_no_host_is_refused_by_name() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as closed:
        port = closed.getsockname()[1]
    said = await refusal(f"127.0.0.1:{port}", 0.05)
    assert f"host 127.0.0.1 does not answer on port {port}" in said and "agentgym host" in said
    async with answering(b"SSH-2.0-OpenSSH\r\n") as machine:
        assert f"{machine} is not ready to be a host: it said 'SSH-2.0-OpenSSH'" in await refusal(machine, LONG_S)
    async with answering(b"busy: another controller has this host\n") as machine:
        assert "another controller has this host" in await refusal(machine, LONG_S)
    async with answering(b"") as machine:
        assert "only closed the connection" in await refusal(machine, LONG_S)
    assert "the host 'no-such-machine.invalid' is un" in await refusal("no-such-machine.invalid", LONG_S)


def test_machines_are_named_with_a_port_or_without() -> None:
    assert parse("node1") == ("node1", 26600)
    assert parse("node1:9") == ("node1", 9)
    assert parse("[fd00::1]:9") == ("fd00::1", 9)
    assert parse("fd00::1") == ("fd00::1", 26600)
    for wrong in ("node1:", "node1:port", ":9", "node1:70000"):
        with pytest.raises(UserError, match="give HOST or HOST:PORT"):
            build_recipe({"launcher": {"name": "attach", "machines": [wrong]}})
    with pytest.raises(UserError, match="start `agentgym host` on the machines"):
        AttachLauncher().transport()


def test_only_a_hello_gives_an_address() -> None:
    assert read_hello('agentgym-host {"name": "a", "address": "tcp://10.0.0.1:9"}\n') == "tcp://10.0.0.1:9"
    assert read_hello("Welcome to node1\n") == ""
