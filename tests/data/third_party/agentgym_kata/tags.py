"""A format of tool calls: JSON in tags, which the policy that ships with agentgym writes, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym import MalformedCall, ToolCall
from agentgym.text.tool_formats.base import Parsed, ToolFormat, Unreadable, after_thoughts, read_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Tags(ToolFormat):
    """`<tool_call>{"name": "submit", "arguments": {"source": "..."}}</tool_call>`."""

    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def parse(self, text: str) -> Parsed:
        begin, end = text.find(OPEN, after_thoughts(text)), 0
        content, calls = list[str](), list[ToolCall | MalformedCall]()
        while begin >= 0:
            content.append(text[end:begin])
            call, end = _call(text, begin + len(OPEN))
            calls.append(call)
            begin = text.find(OPEN, end)
        return Parsed("".join([*content, text[end:]]).strip() if calls else text, tuple(calls))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        bodies = [json.dumps({"name": one.name, "arguments": one.arguments}, ensure_ascii=False) for one in calls]
        return "\n".join(filter(None, [content, *(f"{OPEN}\n{body}\n{CLOSE}" for body in bodies)]))


def _call(text: str, begin: int) -> tuple[ToolCall | MalformedCall, int]:
    """The call behind a tag, and where its end tag ends: the JSON decides, for a text in it may hold a tag."""
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    value, end, fault = None, begin, 'a call is {"name": ..., "arguments": {...}}'
    try:
        value, end = read_json(text, begin)
    except Unreadable as error:
        fault = str(error)
    close = text.find(CLOSE, end)
    past, rest = (close + len(CLOSE), text[end:close]) if close >= 0 else (len(text), text[end:])
    if isinstance(value, dict) and not rest.strip():
        name, arguments = value.get("name"), value.get("arguments")
        if isinstance(name, str) and name and isinstance(arguments, dict):
            return ToolCall(name, arguments), past
    return MalformedCall(text[begin:past], fault), past
