"""Bare JSON, as Llama 3.1 to 3.3 write it: a turn is a call, or it is an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentgym.text.tool_formats.base import Parsed, ToolFormat, after_thoughts
from agentgym.text.tool_formats.json_calls import Unreadable, call_of, dumps, malformed, read_json
from agentgym.tools import MalformedCall, ToolCall

_TAG, _PYTHON = "<|python_tag|>", "<|python_start|><|python_end|>"  # of Llama 3, and of Llama 4's template
_BETWEEN = re.compile(r"[\s;,]*")


@dataclass(frozen=True)
class LlamaJson(ToolFormat):
    """`{"name": …, "parameters": {…}}`, several apart by `;`, where the turn begins with one or with `<|python_tag|>`.

    An answer in JSON that has no key `name` is an answer.
    """

    markers: ClassVar[tuple[str, ...]] = (_TAG, "<|python_start|>", "<|python_end|>")

    def parse(self, text: str) -> Parsed:
        thoughts = after_thoughts(text)
        head, tag, said = text[thoughts:].replace(_PYTHON, _TAG).partition(_TAG)
        head, said = (text[:thoughts] + head, said) if tag else (text[:thoughts], text[thoughts:])
        said = said.strip()
        if not tag and not (said.startswith("{") and '"name"' in said[:200]):
            return Parsed(text)
        calls: list[ToolCall | MalformedCall] = []
        at = 0
        while at < len(said) or not calls:
            begin = at
            try:
                value, at = read_json(said, begin)
                calls.append(call_of(value, said[begin:at], "parameters"))
            except Unreadable as why:
                calls.append(malformed(said[begin:], "parameters", f"{why}: {said[begin:].strip()[:60]}"))
                break
            between = _BETWEEN.match(said, at)
            at = between.end() if between else at
        return Parsed(head.strip(), tuple(calls))

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        body = "; ".join(dumps({"name": call.name, "parameters": call.arguments}) for call in calls)
        return f"{content}{_TAG}{body}" if content and calls else content or body
