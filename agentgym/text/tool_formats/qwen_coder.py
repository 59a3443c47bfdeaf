"""Tags for the function and for each argument, as Qwen3-Coder, Qwen3.5 and Nemotron 3 write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.text.tool_formats.json_calls import MAX_FAULT, Unreadable, dumps, read_json
from agentgym.text.tool_formats.tags import CLOSE, OPEN, Tagged, body
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_ARGUMENT = re.compile(r"\s*<parameter=([^<>\n]+)>\n?")
_ENDS = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=[^<>\n]+>|</function>))")
_END = re.compile(r"\s*</function>\s*(?:</tool_call>|(?=<tool_call>)|\Z)")


@dataclass(frozen=True)
class QwenCoder(Tagged):
    """`<tool_call><function=NAME><parameter=ARGUMENT>VALUE</parameter>…</function></tool_call>` for each call.

    Values have no quotes: objects and lists are read as JSON, all else stays a text, which the tool's schema turns into
    what it asks for. A value ends at the first place where the tags go on as they must, so it may hold tags of its own.
    """

    def read_tags(self, text: str, at: int) -> tuple[list[ToolCall | MalformedCall], int]:
        function = _FUNCTION.match(text, at)
        if function is None:
            return _malformed(text, at, "it begins with <function=NAME>")
        begin, arguments = function.end(), dict[str, Json]()
        while argument := _ARGUMENT.match(text, begin):
            ends = _ENDS.search(text, argument.end())
            if ends is None:
                return _malformed(text, at, f"the argument {argument[1].strip()!r} has no </parameter>")
            arguments[argument[1].strip()] = value_of(text[argument.end() : ends.start()])
            begin = ends.end()
        end = _END.match(text, begin)
        if end is None:
            return _malformed(text, at, "it ends with </function></tool_call>, and between stand <parameter=NAME> tags")
        return [ToolCall(function[1].strip(), arguments)], end.end()

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return "\n".join(filter(None, [content, *map(_write, calls)]))


def _write(call: ToolCall) -> str:
    given = call.arguments.items()
    arguments = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else dumps(value)}\n</parameter>\n"
        for name, value in given
    )
    return f"{OPEN}\n<function={call.name}>\n{arguments}</function>\n{CLOSE}"


def _malformed(text: str, at: int, why: str) -> tuple[list[ToolCall | MalformedCall], int]:
    held, end = body(text, at)
    shown = " ".join(held.split())[:MAX_FAULT]
    return [MalformedCall(held, f"a tool call is <function=NAME><parameter=ARGUMENT>…: {why}; this is {shown}")], end


def value_of(text: str) -> Json:
    """Objects and lists as JSON; all else is a text."""
    if text[:1] not in ("[", "{"):
        return text
    try:
        value, end = read_json(text)
    except Unreadable:
        return text
    return value if end == len(text) else text
