"""Remembers what a chat template writes around texts, so that it is not asked again for every turn.

A template is a program, and may look at a text: trim it, quote it, or leave it out. So the frame around the texts of a
shape of messages is taken only where it is proved with texts that are hard to leave as they are; texts that were not
proved are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from agentgym.errors import UserError
from agentgym.types import Message

Value = TypeVar("Value")
Shape = tuple[tuple[str | None, ...], ...]

_MARK = "\u27eatext {}\u27eb"
_HARD = (
    '{}: a "quoted" \n\\ text,\n\n  <of> <|two|> {{lines}} &amp; \u00e9\u2028\U0001f600',
    '{{"number": {}}}',
    "{}",
    "[{}]",
    "{} /no_think",  # switches that some templates look for in what is said
    "{} /think",
    "<think>\n{}\n</think>\n\nyes",
    "<tool_response>\n{}\n</tool_response>",
)
_MAX_MESSAGES = 8


class Remembered(dict[Hashable, Value]):
    """At most `size` values by key; when it is full, it begins again."""

    __slots__ = ("_size",)

    def __init__(self, size: int) -> None:
        self._size = size

    def keep(self, key: Hashable, value: Value) -> Value:
        if len(self) >= self._size:
            self.clear()
        self[key] = value
        return value


class Frames:
    """Renders messages; those of a known shape without the template.

    render: the text of some messages. What it writes for equal messages must be equal.
    """

    def __init__(self, render: Callable[[Sequence[Message]], str]) -> None:
        self._render = render
        self._known: Remembered[tuple[str, ...]] = Remembered(
            1024
        )  # shape -> what is around the texts; () is not proved
        self._met: Remembered[bool] = Remembered(1024)

    def render(self, messages: Sequence[Message]) -> str:
        shape = _shape(messages)
        if shape is None:
            return self._render(messages)
        around = self._known.get(shape)
        if around is None:
            if not self._met.get(shape):  # a shape that comes once is not worth the proof
                self._met.keep(shape, True)
                return self._render(messages)
            try:
                around = self._known.keep(shape, self._prove(messages))
            except UserError:  # the template refuses one of our texts
                around = self._known.keep(shape, ())
        if not around:
            return self._render(messages)
        parts = [around[0]]
        for message, after in zip(messages, around[1:], strict=True):
            parts += (message["content"], after)
        return "".join(parts)

    def _prove(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """What the template writes before, between and after the texts; empty where it changes some."""
        count = range(len(messages))
        marks = [_MARK.format(n) for n in count]
        rest, around = self._render_texts(messages, marks), []
        for mark in marks:
            before, found, rest = rest.partition(mark)
            if not found:
                return ()
            around.append(before)
        around.append(rest)
        for hard in _HARD:
            texts = [hard.format(n) for n in count]
            expected = "".join(part for pair in zip(around, [*texts, ""], strict=True) for part in pair)
            if self._render_texts(messages, texts) != expected:
                return ()
        return tuple(around)

    def _render_texts(self, messages: Sequence[Message], texts: Sequence[str]) -> str:
        return self._render([{**message, "content": text} for message, text in zip(messages, texts, strict=True)])


def _shape(messages: Sequence[Message]) -> Shape | None:
    """All of the messages but their texts; None for those that have to be rendered."""
    if len(messages) > _MAX_MESSAGES:
        return None
    shape: list[tuple[str | None, ...]] = []
    for message in messages:
        text = message["content"]
        if not text or text[0].isspace() or text[-1].isspace() or "tool_calls" in message:
            return None  # templates trim, and leave out what is empty
        shape.append((message["role"], message.get("name"), message.get("tool_call_id")))
    return tuple(shape)
