"""The plain subprocess: only by name and flag, never silently. It runs the tests' own snippets here."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pool_fakes import until

from agentgym.config import build
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import Limits, RunStatus
from agentgym_sandboxes.unsafe_subprocess.backend import UnsafeSubprocessBackend
from agentgym_sandboxes.unsafe_subprocess.config import UnsafeSubprocessConfig

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_without_the_flag_it_does_nothing_and_says_what_it_is() -> None:
    backend = PluginRegistry.discover().sandbox("unsafe_subprocess")({})
    for begin in (backend.probe, backend.start):
        with pytest.raises(UserError, match=r"code runs as you, .*--sandbox.options.allow_unsafe true"):
            await begin()


async def test_the_flag_must_be_a_real_true() -> None:
    for value in (1, "true"):
        with pytest.raises(UserError, match="allowed is bool"):
            build(UnsafeSubprocessConfig, {"allow_unsafe": value})


async def test_it_claims_nothing_and_its_runs_can_be_told(unsafe_subprocess: UnsafeSubprocessBackend) -> None:
    able = await unsafe_subprocess.probe()
    assert "no isolation" in able.detail
    claims = (able.isolated, able.network_off, able.memory_limit, able.process_limit, able.per_call_uid)
    assert not any((*claims, able.seccomp, able.disk_limit, able.sessions, able.network_allow_list))
    assert unsafe_subprocess.metrics()["sandbox/unsafe"] == 1.0


async def test_a_start_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True, spares=0)):
            pass
    assert any("is not a sandbox: code runs as you" in message for message in caplog.messages)


async def test_it_runs_in_a_folder_of_its_own_that_goes_with_the_call(
    unsafe_subprocess: UnsafeSubprocessBackend,
) -> None:
    result = await unsafe_subprocess.run("import os\nopen('file', 'w').close()\nprint(os.getcwd())\n")
    assert result.status is RunStatus.OK
    folder = Path(result.stdout.strip())
    assert folder.name.startswith("agentgym-unsafe-")
    assert not folder.exists()


async def test_our_environment_is_not_handed_on(unsafe_subprocess: UnsafeSubprocessBackend) -> None:
    result = await unsafe_subprocess.run("import os\nprint(*sorted(os.environ))\n")
    assert set(result.stdout.split()) <= {
        "HOME", "LANG", "LC_CTYPE", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "TMPDIR"
    }  # fmt: skip


async def test_its_process_group_ends_at_the_wall_limit(unsafe_subprocess: UnsafeSubprocessBackend) -> None:
    code = "import os, time\npid = os.fork()\nprint(os.getpid(), flush=True)\ntime.sleep(60)\n"
    pids: list[int] = []
    for wall_s in (1.0, 5.0, 25.0):
        result = await unsafe_subprocess.run(code, limits=Limits(wall_s=wall_s))
        assert result.status is RunStatus.TIMEOUT
        pids = [int(pid) for pid in result.stdout.split()]
        if len(pids) == 2:  # else the limit came before both had begun
            break
    assert len(pids) == 2
    await until(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    """Whether it lives: one that has ended may wait to be buried by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


async def test_one_process_is_limited_in_memory_files_and_cpu(unsafe_subprocess: UnsafeSubprocessBackend) -> None:
    limits = Limits(memory_mib=128, cpu_s=1, file_mib=1, wall_s=30.0)
    found = [
        (await unsafe_subprocess.run(code, limits=limits)).status
        for code in ("bytearray(1 << 30)", "open('f', 'wb').write(bytes(2 << 20))", "while True: pass")
    ]
    assert found == [RunStatus.OOM, RunStatus.DISK_LIMIT, RunStatus.TIMEOUT]


async def test_close_leaves_no_folder_behind() -> None:
    backend = UnsafeSubprocessBackend(UnsafeSubprocessConfig(allow_unsafe=True, spares=2))
    await backend.start()
    await until(lambda: backend.metrics()["sandbox/containers_spare"] >= 2)
    assert backend._pool is not None
    folders = [Path(box.enclosure.folder) for box in backend._pool._spares]
    assert len(folders) == 2 and all(folder.is_dir() for folder in folders)
    await backend.close()
    await backend.close()
    assert not any(folder.exists() for folder in folders)
