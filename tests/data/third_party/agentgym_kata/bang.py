"""A format of tool calls: a line that begins with an exclamation mark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym import MalformedCall, ToolCall
from agentgym.text.tool_formats.base import Parsed, ToolFormat, Unreadable, after_thoughts, read_json

SIGN = "!call "


@dataclass(frozen=True)
class Bang(ToolFormat):
    """`!call NAME {"argument": "value"}`."""

    def parse(self, text: str) -> Parsed:
        begin = after_thoughts(text)
        content, calls = list[str](), list[ToolCall | MalformedCall]()
        for line in text[begin:].split("\n"):
            if line.startswith(SIGN):
                calls.append(_call(line))
            else:
                content.append(line)
        return Parsed((text[:begin] + "\n".join(content)).strip() if calls else text, tuple(calls))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        lines = [f"{SIGN}{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in calls]
        return "\n".join(filter(None, [content, *lines]))


def _call(line: str) -> ToolCall | MalformedCall:
    name, _, given = line.removeprefix(SIGN).strip().partition(" ")
    try:
        arguments, end = read_json(given)
    except Unreadable as fault:
        return MalformedCall(line, f"a call is `!call NAME {{...}}`, with JSON: {fault}")
    if not name or not isinstance(arguments, dict) or given[end:].strip():
        return MalformedCall(line, "a call is `!call NAME {...}`, on a line of its own")
    return ToolCall(name, arguments)
