"""Calls in `<tool_call>` tags, whatever is in them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from agentgym.text.tool_formats.base import Parsed, ToolFormat, after_thoughts
from agentgym.tools import MalformedCall, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Tagged(ToolFormat):
    """What is outside of the tags is the content."""

    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def parse(self, text: str) -> Parsed:
        begins = text.find(OPEN, after_thoughts(text))
        if begins < 0:
            return Parsed(text)
        outside = [text[:begins]]
        calls: list[ToolCall | MalformedCall] = []
        while begins >= 0:
            found, end = self.read_tags(text, begins + len(OPEN))
            calls += found
            begins = text.find(OPEN, end)
            outside.append(text[end : begins if begins >= 0 else None])
        return Parsed("".join(outside).strip(), tuple(calls))

    @abstractmethod
    def read_tags(self, text: str, at: int) -> tuple[list[ToolCall | MalformedCall], int]:
        """The calls of the tags that were opened before a character, and where the tags end."""


def body(text: str, at: int) -> tuple[str, int]:
    """What malformed tags hold, and where they end: at their close, at the next one's begin, or with the text."""
    close, begins = text.find(CLOSE, at), text.find(OPEN, at)
    if close >= 0 and not 0 <= begins < close:
        return text[at:close], close + len(CLOSE)
    end = begins if begins >= 0 else len(text)
    return text[at:end], end
