"""One episode at a server: its session, what was done in it, and the tools that act in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.errors import InfraError, nearest
from agentgym.tools import Schema, ToolCall, ToolResult
from agentgym.types import Json
from agentgym_envs.openenv.actions import ActionForm
from agentgym_envs.openenv.observations import text_of, tool_result
from agentgym_envs.openenv.server import Server
from agentgym_envs.openenv.wire import Answered, Connection, ConnectionLost, Refused, ServerFault, ServerFull

log = logging.getLogger(__name__)
SAY = "send_message"
"""The tool with which servers of `agentgym envs serve` take what is said without a call."""


class SessionSlots:
    """Sessions at a time: no more than the server allows, once it has said so."""

    def __init__(self, limit: int) -> None:
        self.limit, self._surplus = limit, 0
        self._free = asyncio.Semaphore(limit)

    async def take(self, wait_s: float) -> None:
        """Raises InfraError where none gets free in time."""
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise InfraError(
                f"none of the server's {self.limit} sessions was free within {wait_s:g} s: play fewer episodes at a "
                "time, or let the server have more sessions"
            ) from error

    def lower(self, limit: int) -> None:
        if 0 < limit < self.limit:
            self._surplus += self.limit - limit
            self.limit = limit

    def give_back(self) -> None:
        if self._surplus:
            self._surplus -= 1
        else:
            self._free.release()


@dataclass(slots=True, kw_only=True)
class Play:
    """One episode. first, answers: of the reset and the steps; actions: of the policy."""

    server: Server
    slots: SessionSlots
    key: str
    answer_s: float
    reset: Mapping[str, Json]
    connection: Connection
    first: Answered
    actions: list[Mapping[str, Json]] = field(default_factory=list)
    answers: list[Answered] = field(default_factory=list)
    reconnected: bool = False
    refused: int = 0

    @classmethod
    async def begin(
        cls, server: Server, slots: SessionSlots, reset: Mapping[str, Json], *, key: str, answer_s: float
    ) -> Play:
        """Reset in a new session, once a full or restarting server has one. Raises InfraError and ServerFault."""
        clock_s, wait_s = asyncio.get_running_loop().time, 0.1
        until_s = clock_s() + answer_s
        while True:
            await slots.take(max(0.0, until_s - clock_s()))
            try:
                connection, first = await connected(server, reset, key=key, answer_s=answer_s)
            except (ServerFull, ConnectionLost) as failed:
                if isinstance(failed, ServerFull):
                    slots.lower(failed.limit)
                slots.give_back()
                if clock_s() > until_s:
                    raise
            except BaseException:
                slots.give_back()
                raise
            else:
                return cls(
                    server=server, slots=slots, key=key, answer_s=answer_s, reset=reset, connection=connection,
                    first=first,
                )  # fmt: skip
            await asyncio.sleep(wait_s)
            wait_s = min(2.0, wait_s * 1.5)

    async def close(self) -> None:
        try:
            await self.connection.close()
        finally:
            self.slots.give_back()

    @property
    def last(self) -> Answered:
        return self.answers[-1] if self.answers else self.first

    async def step(self, action: Mapping[str, Json]) -> Answered:
        """Raises Refused, InfraError and ServerFault. A lost session is played again once, in a new one."""
        try:
            answered = await self.connection.play("step", action)
        except ConnectionLost as lost:
            if self.reconnected:
                raise
            self.reconnected = True
            log.info("%s; reconnecting", lost)
            await self._play_again()
            answered = await self.connection.play("step", action)
        self.actions.append(action)
        self.answers.append(answered)
        return answered

    async def _play_again(self) -> None:
        """Raises InfraError where the same actions do not lead to the same place."""
        await self.connection.close()
        self.connection, first = await connected(self.server, self.reset, key=self.key, answer_s=self.answer_s)
        if not first.is_like(self.first):
            raise InfraError(
                f"{self._named}: a reset with the same seed begins another episode, so it can't be resumed"
            )
        for action, before in zip(self.actions, self.answers, strict=True):
            if not (await self.connection.play("step", action)).is_like(before):
                raise InfraError(f"{self._named}: the same actions lead elsewhere, so the episode can't be resumed")

    @property
    def _named(self) -> str:
        return self.server.known().named


async def connected(
    server: Server, reset: Mapping[str, Json], *, key: str, answer_s: float
) -> tuple[Connection, Answered]:
    """A new session, in which an episode has begun. One connection that fails is tried again."""
    for last in (False, True):
        about = await asyncio.to_thread(server.about)
        connection = None
        try:
            connection = await Connection.open(about.url, about.named, key=key, answer_s=answer_s)
            first = await connection.play("reset", reset)
            if first.done:
                raise ServerFault(f"{about.named} answered a reset with `done`: the episode is over before an action")
            return connection, first
        except BaseException as error:
            if connection is not None:
                await connection.close()
            if last or not isinstance(error, ConnectionLost):
                raise
    raise AssertionError("unreachable")


class PlayTools:
    """The server's tools, or the one tool `act`, as those of an episode."""

    def __init__(self, play: Play, form: ActionForm, schemas: Sequence[Schema], *, says: bool) -> None:
        self._play, self._form, self._schemas, self.says = play, form, tuple(schemas), says
        self._names = [str(_function(schema)["name"]) for schema in self._schemas]

    @classmethod
    async def of(cls, play: Play, form: ActionForm) -> PlayTools:
        """Raises ServerFault where the server does not list its tools."""
        if form.kind == "act":
            return cls(play, form, form.tools(), says=False)
        listed = (await play.connection.play("step", {"type": "list_tools"})).observation.get("tools")
        if not isinstance(listed, list) or not all(isinstance(one, dict) and one.get("name") for one in listed):
            raise ServerFault(f"{play.server.known().named}: the field `tools` is {listed!r:.80}, not a list of tools")
        schemas = [_schema(one) for one in listed if one["name"] != SAY]
        return cls(play, form, schemas, says=len(schemas) < len(listed))

    def schemas(self) -> Sequence[Schema]:
        return self._schemas

    def is_parallel_safe(self, name: str) -> bool:
        return False  # one session answers one message at a time

    async def call(self, call: ToolCall) -> ToolResult:
        if call.name not in self._names:
            return ToolResult(f"Error: no tool {call.name!r:.80}.{nearest(call.name, self._names)}", "unknown_tool")
        if self._play.last.done:
            return ToolResult("Error: the episode is over", "tool")
        try:
            if self._form.kind == "act":
                observation = (await self._play.step(dict(call.arguments))).observation
                return ToolResult(text_of(observation) or "done")
            action: dict[str, Json] = {"tool_name": call.name, "arguments": dict(call.arguments), "type": "call_tool"}
            return tool_result((await self._play.step(action)).observation)
        except Refused as refused:
            self._play.refused += 1
            return ToolResult(f"Error: {call.name}: {refused}", "arguments")

    async def say(self, text: str) -> Answered:
        return await self._play.step({"type": "call_tool", "tool_name": SAY, "arguments": {"message": text}})


def _function(schema: Schema) -> Mapping[str, Any]:
    function: Mapping[str, Any] = schema["function"]
    return function


def _schema(tool: Mapping[str, Any]) -> Schema:
    parameters = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object", "properties": {}}
    named = {"name": tool["name"], "description": str(tool.get("description") or "").strip()}
    return {"type": "function", "function": {**named, "parameters": parameters}}
