"""Runs a command of this host, with a deadline and the end of what it said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from agentgym.errors import InfraError

TAIL_LINES = 15


class CommandFailed(InfraError):
    """A command ended badly. output: all that it said."""

    def __init__(self, command: str, exit_code: int, output: str) -> None:
        tail = "\n".join(output.splitlines()[-TAIL_LINES:])
        super().__init__(f"{command} failed with exit code {exit_code}:\n{tail}")
        self.output = output


async def run_command(command: Sequence[str], timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """What it said on both streams. Raises CommandFailed, or InfraError when it is late; it is killed then."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise InfraError(f"{command[0]} did not end within {timeout_s:g} s") from error
        raise
    text = output.decode(errors="replace")
    if process.returncode:
        raise CommandFailed(command[0], process.returncode, text)
    return text
