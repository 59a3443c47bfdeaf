"""JSON in tags, as Hermes, Qwen2.5 and Qwen3 write it; and SmolLM2, whose tags hold a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.text.tool_formats.json_calls import Unreadable, call_of, dumps, malformed, read_json
from agentgym.text.tool_formats.tags import CLOSE, OPEN, Tagged, body
from agentgym.tools import MalformedCall, ToolCall

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Hermes(Tagged):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>` for each call; a list of them is read, too."""

    def read_tags(self, text: str, at: int) -> tuple[list[ToolCall | MalformedCall], int]:
        """The JSON says where it ends, not the tag: a text among the arguments may hold the tag's characters."""
        space = _SPACE.match(text, at)
        begin = space.end() if space else at
        try:
            value, end = read_json(text, begin)
        except Unreadable as why:
            held, end = body(text, at)
            return [malformed(held, "arguments", f"{why}: {held.strip()[:60]}")], end
        close = text.find(CLOSE, end)
        rest = text[end : close if close >= 0 else None]
        if rest.strip():
            held, end = body(text, at)
            return [malformed(held, "arguments", f"after it follows {rest.strip()[:60]}")], end
        past = close + len(CLOSE) if close >= 0 else len(text)
        sampled = text[begin:end]
        values = value if isinstance(value, list) and value else [value]
        return [call_of(one, sampled, "arguments") for one in values], past

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        bodies = [dumps({"name": call.name, "arguments": call.arguments}) for call in calls]
        return "\n".join(filter(None, [content, *(f"{OPEN}\n{body}\n{CLOSE}" for body in bodies)]))


@dataclass(frozen=True)
class SmolLM2(Hermes):
    """`<tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>`: all calls of a turn in one list."""

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        body = dumps([{"name": call.name, "arguments": call.arguments} for call in calls])
        return "\n".join(filter(None, [content, f"{OPEN}{body}{CLOSE}" if calls else ""]))
