"""Answers the tool calls of one turn: in order or together, each on the episode's record."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from agentgym.tools import MalformedCall, ToolCall, ToolResult
from agentgym.types import Message, ToolTrace
from agentgym.utf8 import clean_fields, clean_text

Call = ToolCall | MalformedCall
MAX_DEPTH = 64
R = TypeVar("R")
PART: ContextVar[int | Literal["grade"] | None] = ContextVar("part", default=None)
"""What calls a sandbox; see `SandboxTrace.part`."""


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """What an agent said: its calls in order, and in `content` what is outside of them.

    text: the message where no call counts: there are none, or the turn was cut inside of the only one.
    """

    text: str
    content: str = ""
    calls: tuple[Call, ...] = ()

    def __post_init__(self) -> None:
        if not (self.text.isascii() and self.content.isascii()):  # most are, and each turn comes here
            clean_fields(self, "text", "content")


def checked(call: Call) -> Call:
    """The call; a malformed one where its arguments are nested so deep that they cannot be saved or shown."""
    if isinstance(call, MalformedCall):
        return call
    if all(type(value) in _PLAIN for value in call.arguments.values()):
        return call
    level: list[Any] = [call.arguments]
    for _ in range(MAX_DEPTH):
        inner = (part.values() if isinstance(part, Mapping) else part for part in level)
        level = [value for values in inner for value in values if isinstance(value, (Mapping, list, tuple))]
        if not level:
            return call
    return MalformedCall(f"{call.name}(...)", f"its arguments are over {MAX_DEPTH} levels deep")


_PLAIN = frozenset({bool, int, float, str, type(None)})


@functools.lru_cache(256)
def call_id(number: int) -> str:
    """Templates ask for 9 characters. Cached: all episodes share the texts."""
    return f"call{number:05d}"


def assistant_message(said: AgentTurn, ids: Sequence[str]) -> Message:
    """The turn as a chat message. ids: one for each call; a malformed one is in no message."""
    if not said.calls:
        return {"role": "assistant", "content": said.text}
    calls: list[Mapping[str, Any]] = [
        {"type": "function", "id": call_id, "function": {"name": call.name, "arguments": call.arguments}}
        for call, call_id in zip(said.calls, ids, strict=True)
        if isinstance(call, ToolCall)
    ]
    return {"role": "assistant", "content": said.content, "tool_calls": calls}


def tool_message(call: Call, call_id: str, trace: ToolTrace) -> Message:
    """The answer to a call as a chat message."""
    name = call.name if isinstance(call, ToolCall) else "unknown"
    return {"role": "tool", "content": trace.result, "name": name, "tool_call_id": call_id}


async def answer_calls(
    calls: Sequence[Call],
    ask: Callable[[ToolCall], Awaitable[ToolResult]],
    traces: list[ToolTrace],
    *,
    turn: int,
    max_chars: int,
    together: bool,
) -> None:
    """Make the calls of one turn, together or one after another.

    ask: makes one call, and raises what ends the episode. traces: is given a trace of each, in the calls' order;
    of one that has no answer, with the error `broken`.
    """

    async def answer(call: Call, position: int) -> ToolTrace:
        if isinstance(call, MalformedCall):
            text = cut_text(f"Error: {call.fault}", max_chars)
            return ToolTrace(turn=turn, name="", arguments=call.text, result=text, error="malformed")
        began = time.perf_counter()
        PART.set(position)

        def trace(result: str, error: str) -> ToolTrace:
            seconds = time.perf_counter() - began
            return ToolTrace(
                turn=turn, name=call.name, arguments=call.arguments, result=result, error=error, seconds=seconds
            )

        try:
            result = await ask(call)
        except BaseException as error:  # also of a call that was cancelled, when the episode's time was over
            traces.append(trace(clean_text(str(error)) or type(error).__name__, "broken"))
            raise
        return trace(cut_text(result.text, max_chars), result.error)

    if together:
        traces += await all_together([answer(call, position) for position, call in enumerate(calls, len(traces))])
        return
    try:
        for call in calls:
            traces.append(await answer(call, len(traces)))
    finally:
        PART.set(None)


async def all_together(calls: Sequence[Coroutine[Any, Any, R]]) -> list[R]:
    """All results in order, or the first error when nothing is running any more."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def cut_text(text: str, max_chars: int) -> str:
    """A tool's result as the agent is told it: cut with a word."""
    if len(text) > max_chars:
        text = f"{text[:max_chars]}\n[cut: these are the first {max_chars} of {len(text)} characters]"
    return text
