"""What the tests of sessions run in one, each in a line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentgym.sandbox import FileRefused, Limits, RunResult, RunStatus, Session

QUICK = Limits(wall_s=0.5)
WALL_S = (0.5, 5.0, 50.0)
STUBBORN = """
import time
begun = False
while True:
    try:
        begun = begun or print('begun') is None
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
"""


async def out(session: Session, code: str, stdin: str = "") -> str:
    """What a run printed, which must end well."""
    result = await session.run(code, stdin=stdin)
    assert (result.status, result.stderr) == (RunStatus.OK, ""), result
    return result.stdout


async def shell(session: Session, command: str) -> str:
    result = await session.exec(command)
    assert result.status is RunStatus.OK, result
    return result.stdout


async def stopped(call: Callable[..., Awaitable[RunResult]], code: str) -> RunResult:
    """What a run or a command that has no end came to; it must have said `begun`, however slow the machine is."""
    for wall_s in WALL_S:
        result = await call(code, limits=Limits(wall_s=wall_s))
        if "begun" in result.stdout:
            break
    return result


async def size_past(session: Session, path: str, size: int) -> int:
    """The size of a file that some process makes grow, once it is larger than this."""
    async with asyncio.timeout(60):
        while True:
            try:
                found = len(await session.read(path))
            except FileRefused:
                found = -1
            if found > size:
                return found
            await asyncio.sleep(0.05)
