"""Bubblewrap's walls and limits, and what is left when its owner is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import ordinary_user
import pytest
import pytest_asyncio
from pool_fakes import until
from served import ServedBackend, served

from agentgym.config import build
from agentgym.errors import UserError
from agentgym.sandbox import CallCase, GradeRequest, Limits, RunStatus, SandboxUnavailable
from agentgym_sandboxes.bubblewrap.backend import BubblewrapBackend
from agentgym_sandboxes.bubblewrap.config import BubblewrapConfig

pytestmark = pytest.mark.asyncio(loop_scope="session")

Groups = tuple[str, Path | None]
OWNER = """
import asyncio, sys
from agentgym.sandbox import Limits
from agentgym_sandboxes.bubblewrap.backend import BubblewrapBackend
from agentgym_sandboxes.bubblewrap.config import BubblewrapConfig

async def main():
    async with BubblewrapBackend(BubblewrapConfig(cgroup=sys.argv[1], spares=2)) as backend:
        code = "import os\\nfor _ in range(4):\\n    if os.fork() == 0: os.setsid()\\nwhile True: pass\\n"
        busy = asyncio.create_task(backend.run(code, limits=Limits(wall_s=300.0, cpu_s=300)))
        while backend.metrics()["sandbox/containers_spare"] < 2:
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await busy

asyncio.run(main())
"""
WAIT = """
import signal
def f():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH, signal.SIGURG])
    return signal.sigwait([signal.SIGWINCH])
"""


@pytest.fixture
def groups(bubblewrap: ServedBackend) -> Iterator[Groups]:
    """Control groups for a test of its own."""
    with ordinary_user.control_groups(f"agentgym-test-{os.getpid()}-own") as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def own(groups: Groups) -> AsyncIterator[ServedBackend]:
    """A backend for a test of its own: two slots, one spare."""
    path, folder = groups
    async with served({"cgroup": path, "slots": 2, "spares": 1}, folder) as backend:
        yield backend


def in_groups(path: str) -> list[list[str]]:
    """The processes in each of the groups that backends made below a path."""
    version_2 = (ordinary_user.ROOT / "cgroup.controllers").exists()
    top = ordinary_user.ROOT if version_2 else ordinary_user.ROOT / "memory"
    found = []
    for file in (top / path.strip("/")).glob("agentgym.*/cgroup.procs"):
        with contextlib.suppress(OSError):
            found.append(file.read_text().split())
    return found


def members(path: str) -> list[str]:
    return [pid for pids in in_groups(path) for pid in pids]


def kill(pids: list[str], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), number)


def waiting(path: str) -> list[list[str]]:
    """Of the groups below a path, those of calls that came to WAIT: nobody else blocks just SIGURG."""
    return [pids for pids in in_groups(path) if any(_waits(pid) for pid in pids)]


def _waits(pid: str) -> bool:
    with contextlib.suppress(OSError):
        blocked = re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
        # What is waited for does not count as blocked.
        return blocked is not None and int(blocked[1], 16) == 1 << (signal.SIGURG - 1)
    return False


async def say(backend: ServedBackend, code: str, **limits: float) -> str:
    """What a program prints."""
    result = await backend.run(code, limits=Limits(**{"wall_s": 60.0, **limits}))  # type: ignore[arg-type]
    assert result.status is RunStatus.OK, result
    return result.stdout.strip()


async def test_root_is_refused_and_told_why() -> None:
    if not ordinary_user.is_root():
        pytest.skip("the tests are an ordinary user's")
    with pytest.raises(SandboxUnavailable, match=r"must not be started by root: .* ordinary user"):
        await BubblewrapBackend().probe()


async def test_without_a_control_group_it_says_how_to_get_one(own: ServedBackend) -> None:
    async with served({}, None) as backend:
        with pytest.raises(SandboxUnavailable, match=r"systemd-run --user --scope -p Delegate=yes|sudo chown"):
            await backend.probe()
        with pytest.raises(SandboxUnavailable, match=r"systemd-run|sudo chown"):
            await backend.start()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("bwrap", "no-such-bwrap", "no command 'no-such-bwrap'.*apt install bubblewrap"),
        ("python", "/bin/true", r"no Python 3.9 or later.*tried /bin/true"),
    ],
)
async def test_a_command_or_python_that_is_none_is_named(groups: Groups, option: str, value: str, said: str) -> None:
    async with served({"cgroup": groups[0], option: value}, groups[1]) as backend:
        with pytest.raises(SandboxUnavailable, match=said):
            await backend.probe()


async def test_our_own_python_can_be_used_wherever_it_lies(groups: Groups) -> None:
    options = {"cgroup": groups[0], "python": sys.executable, "spares": 0}
    async with served(options, groups[1]) as backend:  # type: ignore[arg-type]
        await backend.start()
        version = await say(backend, "import sys, sqlite3, ssl; print(sys.version)")
        assert version == sys.version


async def test_a_call_sees_the_parts_of_the_system_that_python_needs_and_no_more(bubblewrap: ServedBackend) -> None:
    assert await say(bubblewrap, "import os; print(sorted(os.listdir('/')))") in (
        "['bin', 'dev', 'etc', 'lib', 'lib64', 'proc', 'tmp', 'usr', 'work']",
        "['bin', 'dev', 'etc', 'lib', 'proc', 'tmp', 'usr', 'work']",
    )
    assert await say(bubblewrap, "import os; print(sorted(set(os.listdir('/etc')) - {'localtime'}))") == (
        "['group', 'ld.so.cache', 'passwd']"
    )
    environment = await say(bubblewrap, "import os; print(sorted(os.environ))")
    assert environment == "['HOME', 'LANG', 'PATH', 'PWD', 'PYTHONDONTWRITEBYTECODE', 'PYTHONHASHSEED']"


async def test_the_keeper_of_a_call_is_out_of_its_reach(bubblewrap: ServedBackend) -> None:
    code = (
        "import os, signal\n"
        "os.kill(1, signal.SIGKILL); os.kill(1, signal.SIGSTOP)\n"
        "for name in ('mem', 'environ', 'maps', 'fd/3'):\n"
        "    try:\n"
        "        open(f'/proc/1/{name}', 'rb').read(1)\n"
        "        print('read', name)\n"
        "    except OSError as error:\n"
        "        print(error.strerror)\n"
    )
    assert set((await say(bubblewrap, code)).splitlines()) == {"Permission denied"}
    limits = (
        "import resource\n"
        "for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS):\n"
        "    try:\n"
        "        resource.prlimit(1, number, (1, 1))\n"
        "        print('limited it')\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
    )
    assert set((await say(bubblewrap, limits)).splitlines()) == {"refused"}


async def test_processes_are_limited_and_the_keeper_goes_on(bubblewrap: ServedBackend) -> None:
    code = (
        "import os, time\n"
        "count = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "        count += 1\n"
        "except BlockingIOError:\n"
        "    print(count)\n"
    )
    assert await say(bubblewrap, code, processes=12) == "11"


async def test_files_are_limited_wherever_they_can_be_written(bubblewrap: ServedBackend) -> None:
    code = (
        "import os\n"
        "total = 0\n"
        "for folder in ('/work', '/tmp', '/dev', '/dev/shm', '/', '/etc', '/run', '/proc', '/home'):\n"
        "    try:\n"
        "        for number in range(20):\n"
        "            with open(f'{folder}/{number}', 'wb') as file:\n"
        "                total += file.write(bytes(8 << 20))\n"
        "    except OSError:\n"
        "        pass\n"
        "print(total >> 20)\n"
    )
    assert int(await say(bubblewrap, code)) <= 64 + 16


async def test_nothing_of_a_call_is_left_when_its_answer_is_there(own: ServedBackend, groups: Groups) -> None:
    await own.start()
    code = (
        "import os, signal\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
        "            while True: pass\n"
        "        os._exit(0)\n"
        "print('parent')\n"
    )
    for _ in range(3):
        assert await say(own, code) == "parent"
        assert len(in_groups(groups[0])) <= 1  # that of the next spare, which stands or starts
    async with asyncio.timeout(60):
        while (await own.measure())["sandbox/containers_spare"] != 1:
            await asyncio.sleep(0.02)
    assert len(members(groups[0])) <= 2  # its bubblewrap and its keeper


async def test_a_cancelled_call_ends_and_gives_its_slot_back(own: ServedBackend, groups: Groups) -> None:
    await own.start()
    calls = [asyncio.create_task(own.run(f"{WAIT}f()", limits=Limits(wall_s=300.0))) for _ in "12"]
    await until(lambda: len(waiting(groups[0])) == 2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    async with asyncio.timeout(60):
        assert await say(own, "print(1)") == "1"
    await until(lambda: not waiting(groups[0]))


async def test_a_spare_that_is_killed_is_replaced_and_no_call_notices(own: ServedBackend, groups: Groups) -> None:
    await own.start()
    kill(members(groups[0]))
    assert await say(own, "print(1)") == "1"


async def test_a_call_whose_sandbox_is_killed_is_made_again(own: ServedBackend, groups: Groups) -> None:
    await own.start()
    cases = (CallCase(args=(), expected=int(signal.SIGWINCH)),)
    request = GradeRequest(code=WAIT, entry="f", cases=cases, limits=Limits(wall_s=100.0))
    call = asyncio.create_task(own.grade(request))
    await until(lambda: bool(waiting(groups[0])))
    kill(waiting(groups[0])[0])
    async with asyncio.timeout(60):
        while not call.done():
            kill(members(groups[0]), signal.SIGWINCH)  # who does not wait for it ignores it
            await asyncio.sleep(0.02)
    assert (await call).passed
    assert own.metrics()["sandbox/retries_total"] == 1


async def test_a_killed_owner_leaves_no_process_and_the_next_start_removes_its_groups(groups: Groups) -> None:
    path, folder = groups
    owner = await asyncio.create_subprocess_exec(
        *ordinary_user.command([sys.executable, "-c", OWNER, path], folder), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    async with asyncio.timeout(60):
        assert await owner.stdout.readline() == b"ready\n"
    await until(lambda: len(members(path)) >= 16 + 3 * 2)
    owner.kill()
    await owner.wait()
    await until(lambda: not members(path))
    async with served({"cgroup": path, "spares": 1}, folder) as backend:
        await backend.start()
        assert backend.metrics()["sandbox/reaped_total"] >= 3


async def test_sessions_are_refused_by_name(bubblewrap: ServedBackend) -> None:
    with pytest.raises(UserError, match="'bubblewrap' has no sessions"):
        bubblewrap.session()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": -1}, "slots is -1; it must be 0 to 256"),
        ({"memory_mib": 8}, "memory_mib is 8; it must be at least 32"),
        ({"start_timeout_s": 0}, "more than 0"),
        ({"spare": 3}, "Did you mean 'spares'"),
    ],
)
async def test_an_option_that_can_not_be_is_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(BubblewrapConfig, options)
