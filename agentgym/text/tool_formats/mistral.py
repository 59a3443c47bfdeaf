"""A special token before the calls, as Mistral's models write it, before version 11 of their tokenizer and since."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym.text.tool_formats.base import Parsed, ToolFormat, after_thoughts
from agentgym.text.tool_formats.json_calls import Unreadable, call_of, dumps, malformed, read_json
from agentgym.tools import MalformedCall, ToolCall

_CALLS, _ARGS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"\s*([\w.\-]+)\s*")
_SPACE = re.compile(r"\s*")
Call = ToolCall | MalformedCall


@dataclass(frozen=True)
class _Mistral(ToolFormat):
    """Both are read, whichever the model was trained on."""

    markers: ClassVar[tuple[str, ...]] = (_CALLS, _ARGS, _ID)

    def parse(self, text: str) -> Parsed:
        begins = text.find(_CALLS, after_thoughts(text))
        if begins < 0:
            return Parsed(text)
        calls: list[Call] = []
        content, at = text[:begins].strip(), begins
        while at < len(text):
            at += len(_CALLS)
            space = _SPACE.match(text, at)
            at = space.end() if space else at
            read = _read_list if text[at : at + 1] in ("[", "{") and not text.startswith(_ARGS, at) else _read_named
            found, at = read(text, at)
            calls += found
        return Parsed(content, tuple(calls))


@dataclass(frozen=True)
class Mistral(_Mistral):
    """The format since version 11: `[TOOL_CALLS]name[ARGS]{…}` for each call."""

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        return content + "".join(f"{_CALLS}{call.name}{_ARGS}{dumps(call.arguments)}" for call in calls)


@dataclass(frozen=True)
class MistralList(_Mistral):
    """The format up to version 7: `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}, …]`; an id has 9 letters and
    digits.
    """

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        listed = [
            {"name": call.name, "arguments": call.arguments, "id": call.call_id or f"call{n:05d}"}
            for n, call in enumerate(calls)
        ]
        return f"{content}{_CALLS}{dumps(listed)}" if calls else content


def _next(text: str, at: int) -> int:
    """Where the next calls begin."""
    found = text.find(_CALLS, at)
    return found if found >= 0 else len(text)


def _read_list(text: str, at: int) -> tuple[list[Call], int]:
    try:
        value, end = read_json(text, at)
    except Unreadable as why:
        past = _next(text, at)
        return [malformed(text[at:past], "arguments", f"{why}: {text[at:past].strip()[:60]}")], past
    past = _next(text, end)
    if text[end:past].strip():
        return [malformed(text[at:past], "arguments", f"after it follows {text[end:past].strip()[:60]}")], past
    values = value if isinstance(value, list) else [value]
    return [call_of(one, text[at:end], "arguments") for one in values], past


def _read_named(text: str, at: int) -> tuple[list[Call], int]:
    name = _NAME.match(text, at)
    past = _next(text, at)
    head, args, _ = text[at:past].partition(_ARGS)
    if name is None or not args:
        return [_malformed(text[at:past], "a name and [ARGS] come before the arguments")], past
    called, _, call_id = head.partition(_ID)
    begin = at + len(head) + len(args)
    space = _SPACE.match(text, begin)
    try:
        value, end = read_json(text, space.end() if space else begin)
    except Unreadable as why:
        return [_malformed(text[at:past], str(why))], past
    past = _next(text, end)  # the mark itself may stand in an argument's text
    if text[end:past].strip() or not isinstance(value, dict):
        return [_malformed(text[at:past], "the arguments are one object")], past
    if not re.fullmatch(_NAME, called):
        return [_malformed(text[at:past], "this is no name")], past
    return [ToolCall(called.strip(), value, call_id.strip())], past


def _malformed(text: str, why: str) -> MalformedCall:
    return MalformedCall(text, f"a tool call is {_CALLS}name{_ARGS}{{…}}; {why}: {' '.join(text.split())[:80]}")
