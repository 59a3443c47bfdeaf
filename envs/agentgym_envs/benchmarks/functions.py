"""The functions of a benchmark's package as the tools of an episode, with the package's own schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from agentgym.errors import nearest
from agentgym.tools import ToolCall, ToolError, ToolResult
from agentgym.types import Json, Message
from agentgym_envs.benchmarks.arguments import Refused, take

Run: TypeAlias = Callable[[str, Mapping[str, Any]], str]
"""Carries out a call whose arguments fit: name and arguments to what the agent is told. ToolError: its mistake."""
NamedCall: TypeAlias = tuple[str, Mapping[str, Json]]


class Functions:
    """Descriptions, {"name", "description", "parameters"}, which all episodes share."""

    def __init__(self, described: Iterable[Mapping[str, Json]]) -> None:
        self.schemas: tuple[Mapping[str, Json], ...] = tuple({"type": "function", "function": one} for one in described)
        self.parameters: dict[str, Any] = {
            str(one["function"]["name"]): one["function"].get("parameters", {}) for one in cast(Any, self.schemas)
        }


@dataclass(slots=True)
class FunctionTools:
    """The tools of one episode: calls that fit their schemas are given to `run`.

    always: calls that are given to it whether they fit or not, since some benchmarks' right calls do not.
    """

    functions: Functions
    run: Run
    always: Sequence[NamedCall] = field(default=())

    def schemas(self) -> Sequence[Mapping[str, Json]]:
        return self.functions.schemas

    def is_parallel_safe(self, name: str) -> bool:
        return False

    async def call(self, call: ToolCall) -> ToolResult:
        parameters = self.functions.parameters.get(call.name)
        as_it_is = any(call.name == name and call.arguments == arguments for name, arguments in self.always)
        if parameters is None and not as_it_is:
            text = f"Error: no tool {call.name!r:.80}.{nearest(call.name, self.functions.parameters)}"
            return ToolResult(text, "unknown_tool")
        try:
            given = dict(call.arguments) if parameters is None or as_it_is else take(parameters, call.arguments)
            return ToolResult(self.run(call.name, given))
        except Refused as refused:
            return ToolResult(f"Error: {call.name}: {refused}", "arguments")
        except ToolError as error:
            return ToolResult(str(error), "tool")


def call_message(*calls: NamedCall, content: str = "") -> Message:
    """An assistant's message with these calls, as an oracle yields it."""
    written: list[Mapping[str, Any]] = [
        {"type": "function", "id": f"call_{index}", "function": {"name": name, "arguments": dict(arguments)}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}
