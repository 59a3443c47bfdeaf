"""What an agent program is given of a sampled turn: its text, its thoughts apart, and its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from agentgym.argument_types import ArgumentTypes
from agentgym.policies.call_handler import CallAnswer
from agentgym.rollout.calls import checked
from agentgym.text.chat import ChatRenderer
from agentgym.text.tool_formats.base import after_thoughts
from agentgym.tools import MalformedCall, Schema, ToolCall
from agentgym.types import FinishReason, Json, Turn
from agentgym.utf8 import clean_fields


@dataclass(frozen=True, slots=True)
class Reading:
    """malformed: a call could not be read; the agent is given its text. also: texts by which the turn may come back,
    since some agents write the stop string again that was cut off."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    malformed: bool = False
    also: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "content", "reasoning", "also")


def read_turn(
    renderer: ChatRenderer,
    completion_ids: Sequence[int],
    *,
    tools: Sequence[Schema] = (),
    stop: Sequence[str] = (),
    cut: bool = False,
) -> Reading:
    """tools: those of the call; without any, nothing is a call. stop: the text ends before the first of them.

    cut: the turn ended before its end token; a last call that was cut is not malformed.
    """
    found = _found(renderer, completion_ids, stop)
    if found:
        completion_ids, cut = completion_ids[: _num_until(renderer, completion_ids, stop)], True
    thoughts, said = _split(renderer.opens_thought + renderer.text(completion_ids))
    content, calls, malformed = said, list[ToolCall](), list[MalformedCall]()
    if tools:
        parsed = renderer.parse(completion_ids)
        read = [checked(call) for call in parsed.calls]
        if cut and read and isinstance(read[-1], MalformedCall):
            read.pop()
        malformed = [call for call in read if isinstance(call, MalformedCall)]
        calls = [_typed(call, tools) for call in read if isinstance(call, ToolCall)]
        if calls:
            content = _split(renderer.opens_thought + parsed.content)[1]
            content = "\n".join(filter(None, (content, *(call.text for call in malformed))))
    also: tuple[str, ...] = ()
    if found:
        content, mark = _before(content, stop)
        also = (content + mark,)
    return Reading(content, thoughts, tuple(calls), bool(malformed), also)


def answer_of(turn: Turn, reading: Reading, calls: tuple[ToolCall, ...], *, cached_tokens: int) -> CallAnswer:
    """calls: those of the reading with their ids."""
    return CallAnswer(
        content=reading.content,
        reasoning=reading.reasoning,
        calls=calls,
        finish="length" if turn.finish_reason is not FinishReason.STOP else "tool_calls" if calls else "stop",
        prompt_tokens=len(turn.prompt_ids),
        completion_tokens=len(turn.completion_ids),
        cached_tokens=cached_tokens,
    )


def _split(text: str) -> tuple[str, str]:
    """Thoughts, and what is said after them."""
    at = after_thoughts(text)
    if not at:
        return "", text
    thoughts = text[:at].strip().removeprefix("<think>").removesuffix("</think>")
    return thoughts.strip(), text[at:].strip()


def _found(renderer: ChatRenderer, ids: Sequence[int], stop: Sequence[str]) -> bool:
    if not any(stop):
        return False
    said = _split(renderer.opens_thought + renderer.text(ids))[1]
    return any(one and one in said for one in stop)


def _num_until(renderer: ChatRenderer, ids: Sequence[int], stop: Sequence[str]) -> int:
    """How many of the ids it takes until a stop string is complete."""
    low, high = 1, len(ids)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _found(renderer, ids[:middle], stop) else (middle + 1, high)
    return low


def _before(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """What is before the first stop string, and that one; all of the text where it was inside of a call."""
    found = [(text.find(one), one) for one in stop if one and one in text]
    if not found:
        return text, ""
    at, mark = min(found)
    return text[:at], mark


def _typed(call: ToolCall, tools: Sequence[Schema]) -> ToolCall:
    """Some formats write all arguments as texts; the tool's schema says what they are."""
    functions = [cast("Mapping[str, Json]", tool.get("function", {})) for tool in tools]
    schema = next((one.get("parameters") for one in functions if one.get("name") == call.name), None)
    return call if schema is None else ToolCall(call.name, ArgumentTypes(schema).typed(call.arguments), call.call_id)
