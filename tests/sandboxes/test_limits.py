"""Every limit that is hit is told by its own status, with what was used and what was allowed."""

from __future__ import annotations

import pytest

from agentgym.sandbox import Limits, RunResult, RunStatus, SandboxBackend
from agentgym_sandboxes.docker.backend import DockerBackend

pytestmark = pytest.mark.asyncio(loop_scope="session")

FILL = "for n in range(1000):\n    with open(f'f{n}', 'wb') as f:\n        f.write(b'x' * (1 << 20))\n"
MANY_FILES = "for n in range(100_000):\n    open(f'f{n}', 'w').close()\n"
LARGE_FILE = "with open('f', 'wb') as f:\n    for n in range(40):\n        f.write(b'x' * (1 << 20))\n"
THREADS = (
    "import threading, time\n"
    "for n in range(100):\n"
    "    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()\n"
)
FORKS = "import os, time\nfor n in range(100):\n    if os.fork() == 0:\n        time.sleep(60)\n"

BROKEN = [
    ("while True: pass", Limits(wall_s=0.5), RunStatus.TIMEOUT, "wall_s", 0.5),
    ("while True: pass", Limits(cpu_s=1, wall_s=60.0), RunStatus.TIMEOUT, "cpu_s", 1),
    ("x = 'a' * (1 << 40)", Limits(), RunStatus.OOM, "memory_mib", 512),
    ("x = []\nwhile True: x.append(b'x' * 100_000)", Limits(memory_mib=100), RunStatus.OOM, "memory_mib", 100),
    ("while True: print('x' * 1000)", Limits(output_bytes=100), RunStatus.OUTPUT_LIMIT, "output_bytes", 12_800),
    (FILL, Limits(file_mib=16), RunStatus.DISK_LIMIT, "disk_mib", None),
    (MANY_FILES, Limits(), RunStatus.DISK_LIMIT, "files", None),
    (LARGE_FILE, Limits(file_mib=8), RunStatus.DISK_LIMIT, "file_mib", 8),
    (THREADS, Limits(processes=16), RunStatus.PROCESS_LIMIT, "processes", 16),
    (FORKS, Limits(processes=16), RunStatus.PROCESS_LIMIT, "processes", 16),
]
IDS = ["wall", "cpu", "memory at once", "memory", "output", "disk", "inodes", "file", "threads", "forks"]


def check(result: RunResult, status: RunStatus, resource: str, allowed: float | None) -> None:
    assert (result.status, result.limit and result.limit.resource) == (status, resource), result
    assert result.limit is not None
    assert allowed is None or result.limit.allowed == allowed
    assert result.limit.used > 0
    if resource not in ("memory_mib", "cpu_s"):  # one allocation may be too large; CPU time is looked at in steps
        assert result.limit.used >= result.limit.allowed


@pytest.mark.parametrize(("code", "limits", "status", "resource", "allowed"), BROKEN, ids=IDS)
async def test_a_program_that_hits_a_limit_says_which(
    containing: SandboxBackend, code: str, limits: Limits, status: RunStatus, resource: str, allowed: float | None
) -> None:
    check(await containing.run(code, limits=limits), status, resource, allowed)


@pytest.mark.parametrize(("code", "limits", "status", "resource", "allowed"), BROKEN, ids=IDS)
async def test_a_run_of_a_session_that_hits_a_limit_says_which(
    docker: SandboxBackend, code: str, limits: Limits, status: RunStatus, resource: str, allowed: float | None
) -> None:
    async with docker.session() as session:
        check(await session.run(code, limits=limits), status, resource, allowed)
        await session.reset()
        assert (await session.run("1 + 1")).stdout == "2\n"


@pytest.mark.parametrize(
    ("command", "limits", "status", "resource"),
    [
        ("sleep 60", Limits(wall_s=0.3), RunStatus.TIMEOUT, "wall_s"),
        ("while :; do :; done", Limits(cpu_s=1, wall_s=60.0), RunStatus.TIMEOUT, "cpu_s"),
        ("yes", Limits(output_bytes=1000), RunStatus.OUTPUT_LIMIT, "output_bytes"),
        (
            "for n in 1 2 3; do head -c 100M /dev/zero > $n; done",
            Limits(file_mib=200),
            RunStatus.DISK_LIMIT,
            "disk_mib",
        ),
        ("head -c 300000000 /dev/zero > f", Limits(file_mib=8), RunStatus.DISK_LIMIT, "file_mib"),
        ("for n in $(seq 100); do sleep 60 & done", Limits(processes=16), RunStatus.PROCESS_LIMIT, "processes"),
        ("python3 -c 'x = \"a\" * (1 << 40)'", Limits(), RunStatus.OOM, "memory_mib"),
    ],
)
async def test_a_command_that_hits_a_limit_says_which(
    docker: SandboxBackend, command: str, limits: Limits, status: RunStatus, resource: str
) -> None:
    async with docker.session() as session:
        check(await session.exec(command, limits=limits), status, resource, None)


async def test_processes_that_are_too_large_together_are_out_of_memory(containing: SandboxBackend) -> None:
    code = (
        "import os, time\n"
        "for n in range(12):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(os.urandom(1 << 20)) * 200\n"
        "        time.sleep(60)\n"
        "time.sleep(0.5)\n"
        "while True:\n"
        "    pid, status = os.wait()\n"
        "    if status: raise SystemExit(1)\n"
    )
    result = await containing.run(code, limits=Limits(wall_s=60.0))
    assert (result.status, result.limit and result.limit.resource) == (RunStatus.OOM, "memory_mib"), result
    if containing.name == "bubblewrap":  # its group counts them together
        assert result.limit is not None and result.limit.used > 0.9 * result.limit.allowed > 400


@pytest.mark.parametrize(
    "claim",
    [
        "raise MemoryError",
        "raise OSError(28, 'No space left on device')",
        "raise OSError(27, 'File too large')",
        "raise BlockingIOError(11, 'Resource temporarily unavailable')",
        'raise RuntimeError("can\'t start new thread")',
    ],
)
async def test_a_limit_that_is_only_claimed_is_a_failure_all_the_same(docker: SandboxBackend, claim: str) -> None:
    result = await docker.run(claim)
    assert result.status not in (RunStatus.OK, RunStatus.TIMEOUT)
    assert result.exit_code == 1
    caught = await docker.run(f"try:\n    {claim}\nexcept Exception:\n    print('caught')\n")
    assert (caught.status, caught.stdout, caught.limit) == (RunStatus.OK, "caught\n", None)


async def test_bytes_that_are_no_text_are_kept(docker: SandboxBackend) -> None:
    result = await docker.run("import os; os.write(1, b'\\xff\\n'); os.write(2, b'\\xfe')")
    assert (result.stdout, result.stdout_bytes) == ("\ufffd\n", b"\xff\n")
    assert (result.stderr, result.stderr_bytes) == ("\ufffd", b"\xfe")


async def test_programs_may_share_work_among_processes(docker: DockerBackend) -> None:
    code = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
lock = multiprocessing.Lock()
def square(x):
    with lock:
        return x * x
with multiprocessing.Pool(2) as pool:
    print(pool.map(square, range(4)))
with ProcessPoolExecutor(2) as pool:
    print(list(pool.map(square, range(4))))
"""
    result = await docker.run(code)
    assert result.stdout == 2 * "[0, 1, 4, 9]\n", result


async def test_a_limit_above_what_a_container_has_is_no_failure_of_the_code(docker: SandboxBackend) -> None:
    large = Limits(processes=1 << 20, file_mib=1 << 20, memory_mib=1 << 20, wall_s=1e5, cpu_s=100_000)
    assert (await docker.run("print(6 * 7)", limits=large)).stdout == "42\n"
    async with docker.session() as session:
        assert (await session.run("6 * 7", limits=large)).stdout == "42\n"
        assert (await session.exec("echo 42", limits=large)).stdout == "42\n"
