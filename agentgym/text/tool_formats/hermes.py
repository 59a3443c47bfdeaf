"""JSON in tags, as Hermes, Qwen2.5 and Qwen3 write it; and SmolLM2, whose tags hold a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym.text.tool_formats.base import Parsed, ToolFormat
from agentgym.text.tool_formats.json_calls import Unreadable, call_of, dumps, malformed, read_json
from agentgym.text.tool_formats.thoughts import after_thoughts
from agentgym.tools import MalformedCall, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class Hermes(ToolFormat):
    """`<tool_call>{"name": …, "arguments": {…}}</tool_call>` for each call; a list of them is read, too."""

    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def parse(self, text: str) -> Parsed:
        begins = text.find(OPEN, after_thoughts(text))
        if begins < 0:
            return Parsed(text)
        outside = [text[:begins]]
        calls: list[ToolCall | MalformedCall] = []
        while begins >= 0:
            found, end = _read_tags(text, begins + len(OPEN))
            calls += found
            begins = text.find(OPEN, end)
            outside.append(text[end : begins if begins >= 0 else None])
        return Parsed("".join(outside).strip(), tuple(calls))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        bodies = [dumps({"name": call.name, "arguments": call.arguments}) for call in calls]
        return "\n".join(filter(None, [content, *(f"{OPEN}\n{body}\n{CLOSE}" for body in bodies)]))


@dataclass(frozen=True)
class SmolLM2(Hermes):
    """`<tool_call>[{"name": …, "arguments": {…}}, …]</tool_call>`: all calls of a turn in one list."""

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        body = dumps([{"name": call.name, "arguments": call.arguments} for call in calls])
        return "\n".join(filter(None, [content, f"{OPEN}{body}{CLOSE}" if calls else ""]))


def _read_tags(text: str, at: int) -> tuple[list[ToolCall | MalformedCall], int]:
    """The calls of the tags that were opened before a character, and where the tags end.

    The JSON says where it ends, not the tag: a text among the arguments may hold the tag's characters.
    """
    space = _SPACE.match(text, at)
    begin = space.end() if space else at
    try:
        value, end = read_json(text, begin)
    except Unreadable as why:
        body, end = _body(text, at)
        return [malformed(body, "arguments", f"{why}: {body.strip()[:60]}")], end
    close = text.find(CLOSE, end)
    rest = text[end : close if close >= 0 else None]
    if rest.strip():
        body, end = _body(text, at)
        return [malformed(body, "arguments", f"after it follows {rest.strip()[:60]}")], end
    past = close + len(CLOSE) if close >= 0 else len(text)
    sampled = text[begin:end]
    if isinstance(value, list) and value:
        return [call_of(part, sampled, "arguments") for part in value], past
    return [call_of(value, sampled, "arguments")], past


def _body(text: str, at: int) -> tuple[str, int]:
    """What the tags hold, and where they end: at their close, at the next one's begin, or with the text."""
    close, begins = text.find(CLOSE, at), text.find(OPEN, at)
    if close >= 0 and not 0 <= begins < close:
        return text[at:close], close + len(CLOSE)
    end = begins if begins >= 0 else len(text)
    return text[at:end], end
