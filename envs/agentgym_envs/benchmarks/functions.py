"""The functions of a benchmark's package as the tools of an episode, with the package's own schemas."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from agentgym.errors import nearest
from agentgym.tools import ToolCall, ToolError, ToolResult
from agentgym.types import Json, Message

Run: TypeAlias = Callable[[str, Mapping[str, Any]], str]
"""Carries out a call: name and arguments to what the agent is told. ToolError: its mistake."""
NamedCall: TypeAlias = tuple[str, Mapping[str, Json]]


class Functions:
    """Descriptions, {"name", "description", "parameters"}, which all episodes share."""

    def __init__(self, described: Iterable[Mapping[str, Json]]) -> None:
        self.schemas: tuple[Mapping[str, Json], ...] = tuple({"type": "function", "function": one} for one in described)
        self.names = tuple(str(one["function"]["name"]) for one in cast(Any, self.schemas))


@dataclass(slots=True)
class FunctionTools:
    """The tools of one episode. Arguments are given to `run` as they are: what does not fit is the package's to say.

    hidden: names that are carried out although they are not offered, where the benchmark does so.
    """

    functions: Functions
    run: Run
    hidden: Container[str] = ()

    def schemas(self) -> Sequence[Mapping[str, Json]]:
        return self.functions.schemas

    def is_parallel_safe(self, name: str) -> bool:
        return False

    async def call(self, call: ToolCall) -> ToolResult:
        if call.name not in self.functions.names and call.name not in self.hidden:
            text = f"Error: no tool {call.name!r:.80}.{nearest(call.name, self.functions.names)}"
            return ToolResult(text, "unknown_tool")
        try:  # a copy: a world keeps and changes lists that it was given, and those of right calls are shared
            return ToolResult(self.run(call.name, copy.deepcopy(dict(call.arguments))))
        except ToolError as error:
            return ToolResult(str(error), "tool")


def call_message(*calls: NamedCall, content: str = "") -> Message:
    """An assistant's message with these calls, as an oracle yields it."""
    written: list[Mapping[str, Any]] = [
        {"type": "function", "id": f"call_{index}", "function": {"name": name, "arguments": dict(arguments)}}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": written}
