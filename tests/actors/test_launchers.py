"""Where processes are started: the same actor under every launcher, and launchers of a third party."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

import psutil
import pytest
from counting import Counting
from waiting import LONG_S, no_child_left, until

from agentgym.actors import owned_folder
from agentgym.actors.launchers import ProcessLauncher
from agentgym.actors.process_group import ProcessDied
from agentgym.actors.runtime import Runtime
from agentgym.actors.sockets import OF_MONARCH
from agentgym.config import to_mapping
from agentgym.errors import UserError
from agentgym.recipe import build_recipe

THEIRS = "their_launchers:JobLauncher"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "process", THEIRS])
async def test_an_actor_runs_under_every_launcher_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    launcher = build_recipe({"launcher": name}).launcher
    async with no_child_left(), Runtime(log_dir=tmp_path, launcher=launcher):
        group = await Counting.options(procs=2, threads=3).as_actor(10)
        assert len(set(group.pids)) == 2 and os.getpid() not in group.pids
        assert await group.call(Counting.add, 1, timeout_s=LONG_S) == [11, 11]
        assert await group.call(Counting.variable, "OMP_NUM_THREADS", timeout_s=LONG_S) == ["3", "3"]
        parents = {psutil.Process(pid).ppid() for pid in group.pids}
        assert (parents == {os.getpid()}) == (name == "local")
        sockets = [path for path in Path(gettempdir()).glob(".tmp*/*") if path.is_socket()]
        assert {len(str(path)) - len(gettempdir()) for path in sockets} <= {OF_MONARCH, OF_MONARCH - 1}
        os.kill(group.pids[1], signal.SIGKILL)
        with pytest.raises(ProcessDied, match=rf"process {group.pids[1]} \(rank 1\) of counting died"):
            await group.call(Counting.sleep, 600.0, timeout_s=LONG_S)


@pytest.mark.slow
async def test_groups_are_spawned_on_the_hosts_in_turn(tmp_path: Path) -> None:
    async with no_child_left(), Runtime(log_dir=tmp_path, launcher=ProcessLauncher(num_hosts=2)):
        groups = [await Counting.as_actor(0) for _ in range(3)]
        parents = [psutil.Process(group.pids[0]).ppid() for group in groups]
        assert parents[0] == parents[2] != parents[1] and os.getpid() not in parents


PROGRAM = """
import asyncio, sys
from counting import Counting
from agentgym.actors import owned_folder
from agentgym.actors.launchers import ProcessLauncher
from agentgym.actors.runtime import Runtime

async def main():
    async with Runtime(launcher=ProcessLauncher()):
        group = await Counting.as_actor(0)
        print(*group.pids, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_host_process_dies_with_a_controller_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        actor = psutil.Process(int(program.stdout.readline()))
        host = actor.parent()
        assert host is not None and host.pid != program.pid
        program.kill()
        await until(lambda: not host.is_running() and not actor.is_running(), timeout_s=20)


HOLDER = """
import time
from pathlib import Path
from agentgym.actors.owned_folder import claim
claim(Path({folder!r}))
print(flush=True)
time.sleep(600)
"""
HOST = """
import subprocess, sys
from pathlib import Path
from agentgym.actors.host_process import _exit_with_the_controller
actor = subprocess.Popen([sys.executable, "-c", {holder!r}], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
actor.stdout.readline()
print(actor.pid, flush=True)
_exit_with_the_controller(Path({memory!r}))
"""


def test_a_host_process_that_loses_its_controller_frees_the_memory_of_its_actors(tmp_path: Path) -> None:
    kept = tmp_path / "agentgym-of-this-process"
    owned_folder.claim(kept)
    holder = HOLDER.format(folder=str(tmp_path / "agentgym-weights"))
    command = [sys.executable, "-c", HOST.format(holder=holder, memory=str(tmp_path))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdin is not None and host.stdout is not None
        actor = int(host.stdout.readline())
        assert len(list(tmp_path.iterdir())) == 2
        host.stdin.close()
        assert host.wait(20) == 0
    assert list(tmp_path.iterdir()) == [kept] and not psutil.pid_exists(actor)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("proces", ["no launcher 'proces'", "Did you mean 'process'?", "local, process"]),
        ({"name": "process", "num_host": 2}, ["no field 'launcher.num_host' of 'process'", "'launcher.num_hosts'"]),
        ({"name": "process", "num_hosts": 0}, ["launcher.num_hosts is 0", "at least 1"]),
        ({"name": THEIRS, "mesh": "a"}, ["no field 'launcher.mesh' of", "Did you mean 'launcher.mesh_name'?"]),
        ("their_launchers:JobLaunch", ["does not exist in their_launchers", "Did you mean 'JobLauncher'?"]),
        ("counting:Counting", ["is not a launcher: a frozen dataclass that inherits agentgym.actors.launchers"]),
    ],
)
def test_what_is_no_launcher_is_refused_with_what_would_fit(given: object, words: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        build_recipe({"launcher": given})
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_launcher_by_import_path_survives_the_recipe() -> None:
    recipe = build_recipe({"launcher": {"name": THEIRS, "mesh_name": "others"}})
    assert to_mapping(recipe)["launcher"] == {"name": THEIRS, "mesh_name": "others"}
    assert build_recipe(to_mapping(recipe)) == recipe
