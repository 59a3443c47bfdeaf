"""What the agent can do: commands in the task's container."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from agentgym.sandbox import Machine, RunStatus
from agentgym.tools import ToolError
from agentgym_envs.harbor.origin import Origin, limits_of


class Work:
    """One episode in a task's container; its public methods are the agent's tools."""

    def __init__(
        self, machine: Machine, origin: Origin, *, command_s: float, env: Mapping[str, str] | None = None
    ) -> None:
        """env: of every command, besides the container's."""
        self._machine = machine
        self._origin = origin
        self._command_s = command_s
        self._env = env
        self._user = ""
        self._until_s = math.inf  # the end of the agent's time, by the monotonic clock
        self._servers: Any = None  # `Servers`, of a task with MCP servers
        self._step = 0
        self._judged = 0  # how many steps
        self._rewards: list[Mapping[str, float]] = []  # of those

    @property
    def _limit_s(self) -> float:
        """Seconds that the next call may take."""
        return max(1.0, min(self._command_s, self._until_s - time.monotonic()))

    async def bash(self, command: str) -> str:
        """Run a command line in the container. What it starts in the background keeps running.

        Args:
            command: for the shell; it starts in the task's work folder
        """
        limit_s = self._limit_s
        if "\0" in command:
            raise ToolError("a command has no NUL byte")
        ran = await self._machine.exec(
            [self._origin.shell, "-c", command],
            user=self._user,
            env=self._env,
            folder=self._origin.work,
            limits=limits_of(limit_s),
        )
        said = ran.stdout + ran.stderr
        if ran.status is RunStatus.TIMEOUT:
            return f"{said}\n[ended after {limit_s:g} s]".lstrip()
        if ran.status not in (RunStatus.OK, RunStatus.ERROR):
            return f"{said}\n[ended: {ran.status.value}]".lstrip()
        return said if ran.exit_code == 0 else f"{said}\n[exit code {ran.exit_code}]".lstrip()
