"""OpenEnv's messages: the episodes of one WebSocket, whose policy is the client's."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.text_episode import TextEpisode, TextGame
from agentgym.tools import Schema, ToolCall
from agentgym.types import Json, Message
from agentgym.utf8 import clean

Frame: TypeAlias = dict[str, Any]

SAY: Final = "send_message"
_SAY_SCHEMA: Final[Frame] = {
    "name": SAY,
    "description": "Say something in place of calling a tool. Most tasks end with it: give the final answer here.",
    "input_schema": {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "What you say."}},
        "required": ["message"],
    },
}
_METADATA: Final[Frame] = {"type": "object", "default": {}}
_MESSAGE_ACTION: Final[Frame] = {
    "title": "MessageAction",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "message": {"type": "string", "description": "What the agent says in its turn."},
        "metadata": _METADATA,
    },
    "required": ["message"],
}
_TOOL_ACTION: Final[Frame] = {
    "title": "CallToolAction",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "type": {"const": "call_tool", "default": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object", "default": {}},
        "metadata": _METADATA,
    },
    "required": ["tool_name"],
}
_LISTS: Final = {name: {"type": "array", "items": {"type": "object"}} for name in ("messages", "tools")}
_OBSERVATION: Final[Frame] = {"title": "Observation", "type": "object", "properties": {**_LISTS, "metadata": _METADATA}}
_STATE: Final[Frame] = {
    "title": "State",
    "type": "object",
    "properties": {"episode_id": {"type": ["string", "null"]}, "step_count": {"type": "integer"}},
}
_TOOL_ERRORS: Final = {"unknown_tool": "tool_not_found", "arguments": "invalid_args", "time_limit": "timeout"}


def schemas_of(*, has_tools: bool) -> dict[str, Frame]:
    """JSON schemas of the actions, the observations and the state."""
    return {"action": _TOOL_ACTION if has_tools else _MESSAGE_ACTION, "observation": _OBSERVATION, "state": _STATE}


class _Refused(Exception):
    """A message that is answered with an error; the session goes on."""

    def __init__(self, code: str, message: str, **more: Json) -> None:
        super().__init__(message)
        self.frame = error_frame(code, message, **more)


def error_frame(code: str, message: str, **more: Json) -> Frame:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def _invalid(*faults: tuple[str, str]) -> _Refused:
    """faults: the field and what is wrong with it."""
    errors: list[Json] = [{"type": "value_error", "loc": [place], "msg": text} for place, text in faults]
    said = "; ".join(f"{place}: {text}" for place, text in faults)
    return _Refused("VALIDATION_ERROR", f"Invalid message: {said}", errors=errors)


@dataclass(slots=True)
class OpenEnvSession:
    """The episodes of one client, one after another. Rewards are 0.0 until an episode ends, then its weighted sum."""

    game: TextGame
    has_tools: bool
    _episode: TextEpisode = field(init=False)
    _id: str | None = None  # None: no episode has begun
    _steps: int = 0
    _is_over: bool = False

    def __post_init__(self) -> None:
        self._episode = TextEpisode(self.game)

    async def aclose(self) -> None:
        await self._episode.close()

    async def answer(self, text: str) -> Frame | None:
        """The answer to one message; None to the one that closes the session."""
        try:
            return await self._answer(text)
        except _Refused as refused:
            return refused.frame
        except InfraError as error:
            self._is_over = True
            return error_frame("EXECUTION_ERROR", str(error))

    async def _answer(self, text: str) -> Frame | None:
        try:
            message = clean(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise _Refused("INVALID_JSON", f"Invalid JSON: {error}") from None
        if not isinstance(message, dict):
            raise _invalid(("", "Input should be an object"))
        kind, data = message.get("type"), message.get("data")
        if data is not None and not isinstance(data, dict):
            raise _invalid(("data", "Input should be an object"))
        if kind == "close":
            return None
        if kind == "state":
            return {"type": "state", "data": self.state()}
        if kind == "reset":
            return {"type": "observation", "data": await self.reset(data or {})}
        if kind == "step":
            return {"type": "observation", "data": await self.step(data or {})}
        if kind == "mcp":
            return {"type": "mcp", "data": await self.json_rpc(data)}
        raise _Refused("UNKNOWN_TYPE", f"Unknown message type: {kind}")

    def state(self) -> Frame:
        task_id = None if self._id is None else self._episode.task.task_id
        return {"episode_id": self._id, "step_count": self._steps, "task_id": task_id}

    async def reset(self, data: Mapping[str, Any]) -> Frame:
        """data: `seed`, `episode_id` and `task_id`; what else trainers send along is not looked at."""
        seed, task_id, given = data.get("seed"), data.get("task_id"), data.get("episode_id")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or seed < 0):
            raise _invalid(("seed", "Input should be a whole number from 0 on"))
        for name, value in (("task_id", task_id), ("episode_id", given)):
            if value is not None and not isinstance(value, str):
                raise _invalid((name, "Input should be a text"))
        try:
            await self._episode.reset(secrets.randbelow(2**31) if seed is None else seed, task_id)
        except UserError as error:
            raise _invalid(("task_id", str(error))) from error
        self._id, self._steps, self._is_over = given or secrets.token_hex(16), 0, False
        metadata: Frame = {"task_id": self._episode.task.task_id}
        observation: Frame = {"messages": list(self._episode.record.messages), "metadata": metadata}
        if self.has_tools:
            observation["tools"] = await self._tools()
            metadata["messages"] = observation["messages"]  # all that OpenEnv's client for tools keeps
        return {"observation": observation, "reward": 0.0, "done": False}

    async def step(self, data: Mapping[str, Any]) -> Frame:
        """data: the action. Raises _Refused for one that the schema does not allow, and out of turn."""
        if self.has_tools and data.get("type") == "list_tools":
            return {"observation": {"tools": await self._tools(), "metadata": {}}, "reward": 0.0, "done": False}
        turn, tool = self._turn(data)
        if self._id is None or self._is_over:
            why = "no episode has begun" if self._id is None else "the episode is over"
            raise _Refused("EXECUTION_ERROR", f"{why}: send a reset first")
        self._steps += 1
        before = len(self._episode.record.tool_calls)
        taken = await self._episode.step(turn)
        self._is_over = taken.terminated or taken.truncated
        messages = list(self._episode.answer)
        observation: Frame = {"messages": messages, "metadata": {}}
        if tool:
            traces = self._episode.record.tool_calls[before:]
            told = traces[0] if traces else None
            if told is not None:
                observation["messages"] = messages[1:]
            observation |= _tool_answer(tool, told.result if told else _text(messages), told.error if told else "")
        if self._is_over:
            episode = self._episode.record
            observation["metadata"] = {
                "task_id": self._episode.task.task_id,
                "rewards": dict(episode.rewards),
                "success": episode.success,
                "stop": str(episode.stop),
            }
        return {"observation": observation, "reward": float(taken.reward), "done": self._is_over}

    def _turn(self, data: Mapping[str, Any]) -> tuple[AgentTurn, str]:
        """The agent's turn, and the name of the tool that it calls. Raises _Refused."""
        allowed = schemas_of(has_tools=self.has_tools)["action"]["properties"]
        faults = [(key, "Extra inputs are not permitted") for key in sorted(set(data) - set(allowed))]
        if not self.has_tools:
            if not isinstance(message := data.get("message"), str):
                faults.append(("message", "Input should be a text"))
            if faults:
                raise _invalid(*faults)
            return AgentTurn(str(message)), ""
        name, arguments = data.get("tool_name"), data.get("arguments", {})
        if data.get("type", "call_tool") != "call_tool":
            faults.append(("type", "Input should be 'call_tool' or 'list_tools'"))
        if not isinstance(name, str):
            faults.append(("tool_name", "Input should be a text"))
        if not isinstance(arguments, dict):
            faults.append(("arguments", "Input should be an object"))
        elif name == SAY and not isinstance(arguments.get("message"), str):
            faults.append(("arguments.message", "Input should be a text"))
        if faults:
            raise _invalid(*faults)
        if name == SAY:
            return AgentTurn(arguments["message"], arguments["message"]), SAY
        return AgentTurn("", "", (ToolCall(str(name), arguments),)), str(name)

    async def json_rpc(self, request: Any) -> Frame:
        """An answer to `tools/list` or `tools/call`, in the form of MCP; a call is a step of the episode."""
        if (
            not isinstance(request, dict)
            or request.get("jsonrpc") != "2.0"
            or not isinstance(request.get("method"), str)
        ):
            return _rpc_error(None, -32600, "Invalid Request: give jsonrpc, method and id")
        number, method, given = request.get("id"), request["method"], request.get("params") or {}
        if not self.has_tools or method not in ("tools/list", "tools/call"):
            return _rpc_error(number, -32601, f"Method not found: {method}; the episodes are played over /ws")
        if not isinstance(given, dict):
            return _rpc_error(number, -32602, "Invalid params: an object is expected")
        if method == "tools/list":
            tools = [{**one, "inputSchema": one["input_schema"]} for one in await self._tools()]
            return {"jsonrpc": "2.0", "id": number, "result": {"tools": tools}}
        try:
            taken = await self.step({"tool_name": given.get("name"), "arguments": given.get("arguments") or {}})
        except _Refused as refused:
            return _rpc_error(number, -32602, refused.frame["data"]["message"])
        return {"jsonrpc": "2.0", "id": number, "result": taken["observation"]["result"]}

    async def _tools(self) -> list[Frame]:
        """The tools of the episode; before the first one those of a task of its own."""
        if self._id is None:
            await self._episode.reset(0)
        return [_SAY_SCHEMA, *map(_shown, () if self._is_over else await self._episode.schemas() or ())]


def _shown(schema: Schema) -> Frame:
    function = schema["function"]
    assert isinstance(function, Mapping)
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "input_schema": function.get("parameters") or {"type": "object", "properties": {}},
    }


def _tool_answer(name: str, text: str, error: str) -> Frame:
    """As OpenEnv's `CallToolObservation`: what the policy did wrong is in the result, too, in the words for it."""
    content: list[Json] = [{"type": "text", "text": text}]
    result: Frame = {"content": content, "structured_content": None, "data": text, "is_error": bool(error)}
    fault = {"error_type": _TOOL_ERRORS.get(error, "execution_error"), "message": text} if error else None
    return {"tool_name": name, "result": result, "error": fault}


def _text(messages: Sequence[Message]) -> str:
    return "\n\n".join(message["content"] for message in messages)


def _rpc_error(number: Any, code: int, message: str) -> Frame:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
