"""What every format of tool calls offers: calls out of what was sampled, and calls written as the model would."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from agentgym.plugin_errors import blamed
from agentgym.text.tool_formats.json_calls import Unreadable as Unreadable
from agentgym.text.tool_formats.json_calls import read_json as read_json
from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

_OPEN, _CLOSE = "<think>", "</think>"
_STAND_INS = tuple(map(chr, range(0xE0F0, 0xE100)))  # private characters, of which a text holds at least one not


class TokenTexts(Protocol):
    """The part of a tokenizer that tells sampled markers from typed ones."""

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Parsed:
    """What was said outside of calls, thoughts included, and the calls in their order."""

    content: str
    calls: tuple[ToolCall | MalformedCall, ...] = ()


@dataclass(frozen=True)
class ToolFormat(ABC):
    """How a family of models writes calls. Inherit it in a frozen dataclass: its import path is its name in recipes."""

    markers: ClassVar[tuple[str, ...]] = ()  # the texts around a call, for the model alone to write

    @abstractmethod
    def parse(self, text: str) -> Parsed:
        """Never raises and never guesses: what cannot be read is a MalformedCall, in its place among the calls."""

    @abstractmethod
    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """The calls as `parse` reads them, behind the content."""

    def parse_ids(self, token_ids: Sequence[int], tokenizer: TokenTexts) -> Parsed:
        """Parses as `parse` does; if a marker is one token, the same characters in other tokens are not a marker."""
        text = tokenizer.decode(token_ids)
        if not any(marker in text for marker in self.markers):
            return self.parse(text)
        single = _single_tokens(self.markers, tokenizer)  # type: ignore[arg-type]  # tokenizers are hashed by identity
        if all(text.count(marker) == token_ids.count(token) for token, marker in single.items()):
            return self.parse(text)
        stand_in = next(c for c in _STAND_INS if c not in text)
        pieces: list[str] = []
        begun = 0
        for at in [*(at for at, token in enumerate(token_ids) if token in single), len(token_ids)]:
            typed = tokenizer.decode(token_ids[begun:at])
            for marker in single.values():
                typed = typed.replace(marker, f"{marker[:1]}{stand_in}{marker[1:]}")
            pieces += [typed, single[token_ids[at]] if at < len(token_ids) else ""]
            begun = at + 1
        parsed = self.parse("".join(pieces))
        return Parsed(parsed.content.replace(stand_in, ""), tuple(_without(stand_in, call) for call in parsed.calls))


@dataclass(frozen=True)
class GuardedFormat(ToolFormat):
    """A format that was chosen by name or import path: what it raises names it."""

    inner: ToolFormat

    def __post_init__(self) -> None:
        object.__setattr__(self, "markers", self.inner.markers)

    def parse(self, text: str) -> Parsed:
        with blamed("tool_formats", self.inner):
            return self.inner.parse(text)

    def write(self, calls: Sequence[ToolCall], content: str = "") -> str:
        with blamed("tool_formats", self.inner):
            return self.inner.write(calls, content)

    def parse_ids(self, token_ids: Sequence[int], tokenizer: TokenTexts) -> Parsed:
        with blamed("tool_formats", self.inner):
            return self.inner.parse_ids(token_ids, tokenizer)


@functools.lru_cache(maxsize=64)  # asked for every turn that calls
def _single_tokens(texts: tuple[str, ...], tokenizer: TokenTexts) -> dict[int, str]:
    """The texts that are always one token, by its id."""
    found: dict[int, str] = {}
    for text in texts:
        ids = tokenizer.encode(text)
        if len(ids) == 1 and tokenizer.encode(f"x{text}x").count(ids[0]) == 1:
            found[ids[0]] = text
    return found


def _without(stand_in: str, call: ToolCall | MalformedCall) -> ToolCall | MalformedCall:
    if isinstance(call, MalformedCall):
        return MalformedCall(call.text.replace(stand_in, ""), call.fault.replace(stand_in, ""))
    arguments = replaced(call.arguments, stand_in, "")
    assert isinstance(arguments, Mapping)
    return ToolCall(call.name.replace(stand_in, ""), arguments, call.call_id)


def replaced(value: Json, old: str, new: str) -> Json:
    """The value with a text replaced in all its texts."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, Mapping):
        return {name.replace(old, new): replaced(part, old, new) for name, part in value.items()}
    if isinstance(value, Sequence):
        return [replaced(part, old, new) for part in value]
    return value


def after_thoughts(text: str) -> int:
    """Where the text goes on behind the thoughts that it begins with; its end where they never end."""
    if not text.lstrip().startswith(_OPEN):
        return 0
    close = text.find(_CLOSE)
    return close + len(_CLOSE) if close >= 0 else len(text)
