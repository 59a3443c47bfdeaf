"""Tags for the function and for each argument, as Qwen3-Coder, Qwen3.5 and Nemotron 3 write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym.text.tool_formats.base import Parsed, ToolFormat
from agentgym.text.tool_formats.json_calls import MAX_FAULT, Unreadable, dumps, read_json
from agentgym.text.tool_formats.thoughts import after_thoughts
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_ARGUMENT = re.compile(r"\s*<parameter=([^<>\n]+)>\n?")
_ENDS = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=[^<>\n]+>|</function>))")
_END = re.compile(r"\s*</function>\s*(?:</tool_call>|(?=<tool_call>)|\Z)")


@dataclass(frozen=True)
class QwenCoder(ToolFormat):
    """`<tool_call><function=NAME><parameter=ARGUMENT>VALUE</parameter>…</function></tool_call>` for each call.

    Values have no quotes: objects and lists are read as JSON, all else stays a text, which the tool's schema turns into
    what it asks for. A value ends at the first place where the tags go on as they must, so it may hold tags of its own.
    """

    markers: ClassVar[tuple[str, ...]] = (_OPEN, _CLOSE)

    def parse(self, text: str) -> Parsed:
        begins = text.find(_OPEN, after_thoughts(text))
        if begins < 0:
            return Parsed(text)
        outside = [text[:begins]]
        calls: list[ToolCall | MalformedCall] = []
        while begins >= 0:
            call, end = _read(text, begins + len(_OPEN))
            calls.append(call)
            begins = text.find(_OPEN, end)
            outside.append(text[end : begins if begins >= 0 else None])
        return Parsed("".join(outside).strip(), tuple(calls))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return "\n".join(filter(None, [content, *map(_write, calls)]))


def _write(call: ToolCall) -> str:
    given = call.arguments.items()
    arguments = "".join(
        f"<parameter={name}>\n{value if isinstance(value, str) else dumps(value)}\n</parameter>\n"
        for name, value in given
    )
    return f"{_OPEN}\n<function={call.name}>\n{arguments}</function>\n{_CLOSE}"


def _read(text: str, at: int) -> tuple[ToolCall | MalformedCall, int]:
    """The call whose tag was opened before a character, and where it ends."""
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
    return ToolCall(function[1].strip(), arguments), end.end()


def _malformed(text: str, at: int, why: str) -> tuple[MalformedCall, int]:
    close, begins = text.find(_CLOSE, at), text.find(_OPEN, at)
    if close >= 0 and not 0 <= begins < close:
        body, end = text[at:close], close + len(_CLOSE)
    else:
        end = begins if begins >= 0 else len(text)
        body = text[at:end]
    shown = " ".join(body.split())[:MAX_FAULT]
    return MalformedCall(body, f"a tool call is <function=NAME><parameter=ARGUMENT>…: {why}; this is {shown}"), end


def value_of(text: str) -> Json:
    """Objects and lists as JSON; all else is a text."""
    if text[:1] not in ("[", "{"):
        return text
    try:
        value, end = read_json(text)
    except Unreadable:
        return text
    return value if end == len(text) else text
