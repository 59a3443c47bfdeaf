"""The MCP servers of a task: started in its container beside the agent, their tools offered beside its own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final, Self

from agentgym.errors import InfraError, UserError
from agentgym.mcp import McpServer, McpSession
from agentgym.sandbox import FileRefused, Machine
from agentgym.tools import Schema, ToolCall, ToolResult, Tools
from agentgym_envs.harbor.folder import Phase, TaskFolder
from agentgym_envs.harbor.origin import Origin
from agentgym_envs.harbor.shell import Work

START_S: Final = 60.0


class Servers:
    """The tools of an episode. Before the agent acts, a server that does not start breaks the episode; later the agent
    may have killed or replaced it, so what fails then is an answer to its call, and the next call starts it again."""

    def __init__(self, servers: Sequence[McpServer], work: Work) -> None:
        self._servers = servers
        self._work = work
        self._open: dict[int, McpSession] = {}  # by the server's place
        self._owners: dict[str, tuple[int, str]] = {}  # by the name that is offered: the server, and its own name
        self._schemas: tuple[Schema, ...] = ()
        self._of_work: Tools | None = None

    @classmethod
    async def start(cls, machine: Machine, task: TaskFolder, phase: Phase, origin: Origin, work: Work) -> Self:
        """Raises InfraError where one does not start."""
        named = task.config.machine.mcp_servers
        logs = [f"/logs/agent/mcp-{number}.txt" for number in range(len(named))]
        made = [
            McpServer.inside(
                machine,
                one.command,
                *one.args,
                name=one.name,
                limits={"start_timeout_s": START_S},
                user=phase.agent.user,
                folder=origin.work,
                errors=log,
            )
            for one, log in zip(named, logs, strict=True)
        ]
        servers = cls(made, work)
        for number, log in enumerate(logs):
            try:
                await servers._opened(number)
            except (InfraError, UserError) as error:
                await servers.close()
                raise InfraError(f"{task.name}: {error}{await _last_words(machine, log)}") from error
        return servers

    def beside(self, of_work: Tools) -> Self:
        """Offer the servers' tools after others, under their own names or, where these are taken, the server's too."""
        self._of_work = of_work
        schemas = [*of_work.schemas()]
        taken = {str(one["function"]["name"]) for one in schemas}
        for number, server in enumerate(self._servers):
            session = self._open.get(number)
            for schema in [] if session is None else session.schemas():
                own = schema["function"]["name"]
                offered = own if own not in taken else f"{server.name}_{own}"
                taken.add(offered)
                self._owners[offered] = (number, own)
                schemas.append({**schema, "function": {**schema["function"], "name": offered}})
        self._schemas = tuple(schemas)
        return self

    def schemas(self) -> Sequence[Schema]:
        return self._schemas

    def is_parallel_safe(self, name: str) -> bool:
        return False  # commands of a container take turns

    async def call(self, call: ToolCall) -> ToolResult:
        assert self._of_work is not None
        if call.name not in self._owners:
            return await self._of_work.call(call)
        number, own = self._owners[call.name]
        self._servers[number].call_timeout_s = self._work._limit_s
        try:
            session = await self._opened(number)
            return await session.call(ToolCall(own, call.arguments, call.call_id))
        except (InfraError, UserError) as error:
            await self._closed(number)
            return ToolResult(f"Error: {error}", "tool")

    async def close(self) -> None:
        for number in [*self._open]:
            await self._closed(number)

    async def _opened(self, number: int) -> McpSession:
        if number in self._open and self._open[number].is_broken:
            await self._closed(number)
        if number not in self._open:
            self._open[number] = await self._servers[number].open()
        return self._open[number]

    async def _closed(self, number: int) -> None:
        session = self._open.pop(number, None)
        if session is not None:
            await session.end()


async def _last_words(machine: Machine, log: str) -> str:
    with contextlib.suppress(FileRefused, InfraError):
        said = (await machine.get_file(log)).decode(errors="replace").strip()
        return f". It said: {said[-300:]}" if said else ""
    return ""
