"""Tries a sandbox of this machine: programs that say from inside what holds, and one that outgrows its memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Protocol

from agentgym.sandbox import Limits, RunResult, RunStatus, SandboxUnavailable


class Run(Protocol):
    """A sandbox's `run`."""

    async def __call__(self, code: str, *, limits: Limits) -> RunResult: ...


WALL_S = 60.0  # calls yield to all else on the machine, and a limit that is reached late still holds
PROCESSES = 16
MEMORY_MIB = 96
CHILD_MIB = 40
_LOOK = """
import json, os, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
held = {
    "dropped capabilities": int(status["CapEff"], 16) == 0,
    "no new privileges": int(status["NoNewPrivs"]) == 1,
    "a system call filter": int(status["Seccomp"]) == 2,
    "a process tree of its own": os.getppid() == 1,
    "no network": [line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line] == ["lo"],
    "read-only folders": True,
    "a limit on files": False,
    "a limit on processes": False,
}
for path in ("/file", "/usr/file", "/dev/file", "/etc/file", "/proc/sys/kernel/core_pattern"):
    try:
        open(path, "a").close()
        held["read-only folders"] = False
    except OSError:
        pass
try:
    for number in range(WORK_MIB // 8 + 2):
        with open(str(number), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 8 << 20)
except OSError:
    held["a limit on files"] = True
try:
    for number in range(PROCESSES + 8):
        if os.fork() == 0:
            signal.pause()
except OSError:
    held["a limit on processes"] = True
print(json.dumps(held))
"""
_FILL = """
import os, signal
for _ in range(CHILDREN):
    if os.fork() == 0:
        data = b"1" * (CHILD_MIB << 20)
        signal.pause()
_, status = os.wait()
print(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
"""


async def try_walls(run: Run, *, files_mib: int, most_mib: Callable[[int], int]) -> None:
    """Raises SandboxUnavailable with what does not hold here.

    files_mib: the room in the work folder. most_mib: what a call's processes may use together, by what each may.
    """
    children = most_mib(MEMORY_MIB) // CHILD_MIB + 2
    looked, filled = await asyncio.gather(
        run(
            f"WORK_MIB, PROCESSES = {files_mib}, {PROCESSES}\n{_LOOK}",
            limits=Limits(wall_s=WALL_S, processes=PROCESSES, memory_mib=MEMORY_MIB),
        ),
        run(
            f"CHILDREN, CHILD_MIB = {children}, {CHILD_MIB}\n{_FILL}",
            limits=Limits(wall_s=WALL_S, processes=children + 2, memory_mib=MEMORY_MIB),
        ),
    )
    if looked.status is not RunStatus.OK:
        raise SandboxUnavailable(f"a trial in the sandbox failed: {looked.status}, {looked.stderr.strip()[-500:]}")
    held: dict[str, bool] = json.loads(looked.stdout)
    held["a limit on memory"] = filled.status is RunStatus.OOM or filled.stdout == "True\n"
    broken = sorted(wall for wall, holds in held.items() if not holds)
    if broken:
        raise SandboxUnavailable(f"the sandbox starts here, but without {', '.join(broken)}")
