"""When two messages are the same: what agents change without meaning it when they send a conversation back.

Forgiven are white space at the ends, thoughts that are missing, JSON arguments with other spaces or another order,
1.0 for 1, and ids of calls that were renamed. A changed text is another message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from agentgym.text.tool_formats.base import after_thoughts
from agentgym.tools import Schema, ToolCall
from agentgym.types import Json, Message

CallKey: TypeAlias = tuple[str, str]  # name, arguments
Key: TypeAlias = tuple[str, str, tuple[CallKey, ...], tuple[int, int]]
"""Role, text, calls, and of a tool's message the call that it answers: which turn before it, which call of that."""

_NO_CALL = (-1, -1)
_ENCODER = json.JSONEncoder(sort_keys=True)


@dataclass(frozen=True, slots=True)
class Heard:
    """A message as it was received. message: as a template takes it. call_ids: as the agent has them."""

    key: Key
    message: Message
    call_ids: tuple[str, ...] = ()


def heard(messages: Sequence[Message]) -> list[Heard]:
    """The messages in normal form. Raises ValueError for calls of another shape."""
    result: list[Heard] = []
    answers: dict[str, tuple[int, int, str, str]] = {}  # id -> turn, place in it, name, id for the template
    turn = unanswered = num_calls = 0
    for message in messages:
        if message["role"] == "assistant":
            turn, unanswered = turn + 1, 0
            calls, ids = _calls_of(message)
            own = [f"call{num_calls + n:05d}" for n in range(len(calls))]  # some templates ask for 9 characters
            num_calls += len(calls)
            for place, (call, call_id, new) in enumerate(zip(calls, ids, own, strict=True)):
                answers[call_id] = (turn, place, call.name, new)
            result.append(Heard(spoken_key(message["content"], calls), _spoken(message, calls, own), tuple(ids)))
        elif message["role"] == "tool":
            known = answers.get(message.get("tool_call_id", ""))
            of_turn, place, name, new = known or (turn, unanswered, message.get("name", "tool"), "call00000")
            unanswered = place + 1
            renamed: Message = {"role": "tool", "content": message["content"], "name": name, "tool_call_id": new}
            result.append(Heard(("tool", message["content"].strip(), (), (turn - of_turn, place)), renamed))
        else:
            plain: Message = {"role": message["role"], "content": message["content"]}
            result.append(Heard((message["role"], message["content"].strip(), (), _NO_CALL), plain))
    return result


def spoken_key(content: str, calls: Iterable[ToolCall]) -> Key:
    """The key of an agent's turn."""
    said = content[after_thoughts(content) :].strip()
    return "assistant", said, tuple((call.name, _ENCODER.encode(_plain(call.arguments))) for call in calls), _NO_CALL


def tools_key(tools: Sequence[Schema]) -> str:
    """Two calls with the same tools have the same key."""
    return _ENCODER.encode(list(tools)) if tools else ""


def joined(messages: Sequence[Message]) -> list[Message] | None:
    """Joins the messages of each turn: some programs send its text and each of its calls separately.

    None where nothing is in parts.
    """
    whole: list[Message] = []
    for message in messages:
        before = whole[-1] if whole else None
        both = before is not None and before["role"] == message["role"] == "assistant"
        if before is None or not both or (before["content"].strip() and message["content"].strip()):
            whole.append(message)
            continue
        calls = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
        content = before["content"] if before["content"].strip() else message["content"]
        whole[-1] = {"role": "assistant", "content": content}
        if calls:
            whole[-1]["tool_calls"] = calls
    return whole if len(whole) < len(messages) else None


def _calls_of(message: Message) -> tuple[list[ToolCall], list[str]]:
    calls, ids = [], []
    for given in message.get("tool_calls", ()):
        try:
            name, arguments = given["function"]["name"], given["function"].get("arguments")
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"a call of a message has function: name and arguments, not {given!r:.80}") from None
        if isinstance(arguments, str) and arguments.strip():  # no JSON object: nothing that the policy said
            arguments = {"arguments": arguments.strip()}
        calls.append(ToolCall(str(name), arguments if isinstance(arguments, Mapping) else {}))
        ids.append(str(given.get("id", "")))
    return calls, ids


def _spoken(message: Message, calls: Sequence[ToolCall], ids: Sequence[str]) -> Message:
    if not calls:
        return {"role": "assistant", "content": message["content"]}
    written: list[Mapping[str, Any]] = [
        {"type": "function", "id": one, "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call, one in zip(calls, ids, strict=True)
    ]
    return {"role": "assistant", "content": message["content"], "tool_calls": written}


def _plain(value: Json) -> Json:
    """Whole numbers as such: some languages have one kind of number."""
    kind = type(value)
    if kind is str or kind is int:  # most are
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if kind is dict or isinstance(value, Mapping):
        return {name: _plain(part) for name, part in cast("Mapping[str, Json]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value
