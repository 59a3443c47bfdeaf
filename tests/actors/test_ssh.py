"""The launcher ssh against a real server on a port of its own: Debian's openssh-server, as root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import LONG_S, until

from agentgym.yaml import dump_inline

CONFIG = """
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile {folder}/sshd.pid
StrictModes no
PermitRootLogin yes
UsePAM no
"""
PROGRAM = """
import asyncio, sys
from counting import Counting
from agentgym.actors.runtime import Runtime
from agentgym.recipe import build_recipe
from agentgym.yaml import parse_yaml

async def main():
    async with Runtime(launcher=build_recipe({"launcher": parse_yaml(sys.argv[1], where="launcher")}).launcher):
        groups = [await Counting.options(procs=2).as_actor(10) for _ in range(2)]
        for group in groups:
            print(*group.pids, await group.call(Counting.add, 1, timeout_s=60), flush=True)
        if sys.stdin.readline():
            await asyncio.gather(*(group.stop() for group in groups))

asyncio.run(main())
"""
pytestmark = [
    pytest.mark.hostile,
    pytest.mark.skipif(shutil.which("sshd") is None or os.geteuid() != 0, reason="needs openssh-server and root"),
]


@pytest.fixture
def options(tmp_path: Path) -> Iterator[list[str]]:
    """For ssh, to reach the server."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "config").write_text(CONFIG.format(folder=tmp_path))
    Path("/run/sshd").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = shutil.which("sshd")
    assert program is not None
    command = [program, "-D", "-e", "-p", str(port), "-f", str(tmp_path / "config")]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            while b"listening" not in (tmp_path / "log").read_bytes():
                assert server.poll() is None, (tmp_path / "log").read_text()
            given = ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes"]
            yield ["-p", str(port), "-i", str(tmp_path / "user"), *(f"-o{option}" for option in given)]
        finally:
            server.terminate()


async def test_machines_are_reached_by_ssh_and_keep_nothing_of_a_controller(options: list[str]) -> None:
    launcher = dump_inline({"name": "ssh", "machines": ["127.0.0.1", "root@localhost"], "options": options})
    for end in ("in order", "killed"):
        command = [sys.executable, "-c", PROGRAM, launcher]
        with psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as controller:
            lines = [controller.stdout.readline() for _ in range(2)]
            assert all(line.endswith("[11, 11]\n") for line in lines), lines
            actors = [psutil.Process(int(pid)) for line in lines for pid in line.split()[:2]]
            hosts = [actor.parent() for actor in actors]
            assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
            assert not any(actor in controller.children(recursive=True) for actor in actors)
            if end == "killed":
                controller.kill()
            else:
                controller.communicate("end\n")
                assert controller.returncode == 0
        for process in (*actors, *hosts):
            await until(lambda one=process: not one.is_running(), timeout_s=LONG_S)


async def test_a_key_that_is_not_accepted_is_told_with_the_machine(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "user.pub").write_text("")
    launcher = dump_inline({"name": "ssh", "machines": ["127.0.0.1"], "options": options})
    end = subprocess.run([sys.executable, "-c", PROGRAM, launcher], capture_output=True, text=True)
    said = "UserError: no host process could be started on 127.0.0.1 by ssh: root@127.0.0.1: Permission denied"
    assert any(said in line for line in end.stderr.splitlines()[-2:]), end.stderr  # glibc may say something after it
