"""What the tests of sessions run in one, each in a line."""

from __future__ import annotations

from agentgym.sandbox import Limits, RunStatus, Session

QUICK = Limits(wall_s=0.5)
STUBBORN = """
import time
while True:
    try:
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
