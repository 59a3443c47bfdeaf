"""What a server is asked and what it answers, in OpenAI's chat completions as servers in fact write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from agentgym.rollout.calls import Call
from agentgym.text.tool_formats.json_calls import Unreadable, read_json
from agentgym.tools import MalformedCall, Schema, ToolCall
from agentgym.types import Json, Message
from agentgym.utf8 import clean_fields

Finish = Literal["stop", "length", "filtered", "refused"]
CHARS_PER_TOKEN = 4  # of an estimate, where a server does not count
_MAX_SHOWN = 200
_LENGTH, _FILTERED = ("length", "max_tokens", "model_length"), ("content_filter", "safety", "content_filtered")


class ServerFault(Exception):
    """The server failed in a way that may pass. retry_after_s: as it says itself. busy: all requests have to wait.
    body: of an answer that is none; its tokens may be paid."""

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, busy: bool = False, body: Json = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s, self.busy, self.body = retry_after_s, busy, body


class ContextFull(Exception):
    """The conversation is longer than the model's context."""


class Filtered(Exception):
    """The server's filter refused the request."""


class Unsupported(Exception):
    """The server does not take a parameter."""

    def __init__(self, parameter: str, message: str) -> None:
        super().__init__(message)
        self.parameter = parameter


class UnknownModel(Exception):
    """The server has no model of that name."""


class RequestRefused(Exception):
    """The server refused this one request for another reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One turn that is asked for. messages: in OpenAI's shape. seed: also part of what tells two samples apart."""

    model: str
    messages: tuple[Mapping[str, Json], ...]
    tools: tuple[Schema, ...] = ()
    max_tokens: int
    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    seed: int
    options: Mapping[str, Json] = field(default_factory=dict)

    def body(self, omit: Sequence[str] = ()) -> dict[str, Json]:
        """omit: parameters that are not sent."""
        found: dict[str, Json] = {"model": self.model, "messages": self.messages}
        if self.tools:
            found["tools"] = self.tools
        sampling = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        if self.top_p < 1:
            sampling["top_p"] = self.top_p
        if self.top_k:  # not OpenAI's; vLLM and llama.cpp take it
            sampling["top_k"] = self.top_k
        return {**found, **{name: value for name, value in sampling.items() if name not in omit}, **self.options}

    @property
    def prompt_estimate(self) -> int:
        return len(json.dumps([self.messages, self.tools])) // CHARS_PER_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """cached_tokens: of the prompt's. reasoning_tokens: of the completion's. estimated: the server did not say."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    def to_mapping(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """One turn. content: what was said outside of calls; of a refusal, its words. reasoning_field: where the server
    has it. model: as the server calls it, which may say more than it was asked for."""

    content: str
    reasoning: str
    reasoning_field: str
    calls: tuple[Call, ...]
    finish: Finish
    usage: Usage
    model: str

    def __post_init__(self) -> None:
        clean_fields(self, "content", "reasoning", "model")


class ChatServer(Protocol):
    """One server. What it raises is a UserError, or of this module."""

    async def models(self) -> list[str] | None:
        """None where it does not list them."""

    async def complete(self, body: Mapping[str, Json]) -> Json:
        """The body of the answer."""

    async def close(self) -> None: ...


def read_answer(body: Json, request: ChatRequest) -> ChatAnswer:
    """Raises ServerFault for what is no answer."""
    try:
        choice = body["choices"][0]  # type: ignore[index, call-overload]
        message = choice["message"]  # type: ignore[index, call-overload]
        assert isinstance(choice, Mapping) and isinstance(message, Mapping) and isinstance(body, Mapping)
    except (KeyError, IndexError, TypeError, AssertionError):
        shown = json.dumps(body)[:_MAX_SHOWN]
        raise ServerFault(f"its answer is not a chat completion: {shown}", body=body) from None
    content, thought = _texts(message.get("content"))
    where = next((name for name in ("reasoning_content", "reasoning") if isinstance(message.get(name), str)), "")
    given = message.get("tool_calls")
    calls = tuple(map(read_call, given)) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    refusal, reason = message.get("refusal"), choice.get("finish_reason")
    finish: Finish = "length" if reason in _LENGTH else "filtered" if reason in _FILTERED else "stop"
    if isinstance(refusal, str) and refusal:
        content, finish = content or refusal, "refused"
    reasoning = str(message[where]) if where else thought
    said = len(content) + len(reasoning) + sum(len(str(call)) for call in calls)
    return ChatAnswer(
        content=content,
        reasoning=reasoning,
        reasoning_field=where,
        calls=calls,
        finish=finish,
        usage=reported_usage(body)
        or Usage(prompt_tokens=request.prompt_estimate, completion_tokens=-(-said // CHARS_PER_TOKEN), estimated=True),
        model=str(body.get("model") or request.model),
    )


def read_call(given: Any) -> Call:
    """A call as the API has it: its arguments are JSON text, of which nothing is guessed."""
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        return MalformedCall(json.dumps(given, default=str)[:_MAX_SHOWN], "a tool call names a function; this has none")
    text = function.get("arguments")
    if isinstance(text, Mapping):  # some servers
        return ToolCall(name, text)
    text = text if isinstance(text, str) and text.strip() else "{}"
    try:
        value, end = read_json(text.strip())
        if rest := text.strip()[end:]:
            raise Unreadable(f"text follows the object: {rest[:40]!r}")
    except Unreadable as fault:
        return MalformedCall(text, f"the arguments of {name} are not JSON: {fault}")
    if not isinstance(value, Mapping):
        return MalformedCall(text, f"the arguments of {name} are not a JSON object: {text[:80]}")
    return ToolCall(name, value)


def sent_message(message: Message) -> dict[str, Json]:
    """A message of a conversation in the shape that servers take: the arguments of calls are JSON text."""
    sent: dict[str, Json] = {"role": message["role"], "content": message["content"]}
    if message["role"] == "tool":
        sent["tool_call_id"] = message.get("tool_call_id", "")
    if "tool_calls" in message:
        sent["tool_calls"] = [_sent_call(call) for call in message["tool_calls"]]
    return sent


def sent_turn(answer: ChatAnswer, ids: Sequence[str], *, with_reasoning: bool) -> dict[str, Json]:
    """An agent's turn as it is sent back. ids: of its calls, also of those that could not be read."""
    sent: dict[str, Json] = {"role": "assistant", "content": answer.content}
    if with_reasoning and answer.reasoning:
        sent[answer.reasoning_field or "reasoning_content"] = answer.reasoning
    if answer.calls:
        sent["tool_calls"] = [
            {"id": call_id, "type": "function", "function": _sent_function(call)}
            for call, call_id in zip(answer.calls, ids, strict=True)
        ]
    return sent


def _sent_function(call: Call) -> dict[str, Json]:
    if isinstance(call, ToolCall):
        return {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    # Templates read the arguments of earlier calls, and fail on what is not an object.
    return {"name": "unknown", "arguments": json.dumps({"unreadable": call.text}, ensure_ascii=False)}


def _sent_call(call: Any) -> Json:
    function = call["function"]
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}


def _texts(content: object) -> tuple[str, str]:
    """What was said and what was thought; some servers write parts."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return (content if isinstance(content, str) else ""), ""
    said, thought = [], []
    for part in content:
        if not isinstance(part, Mapping):
            continue
        if isinstance(part.get("text"), str):
            said.append(part["text"])
        elif isinstance(thinking := part.get("thinking"), (str, list)):
            thought.append(thinking if isinstance(thinking, str) else _texts(thinking)[0])
    return "".join(said), "".join(thought)


def reported_usage(body: Json) -> Usage | None:
    """What the server counted, also of an answer that cannot be used; None where it did not count."""
    given = body.get("usage") if isinstance(body, Mapping) else None
    counts = given if isinstance(given, Mapping) else {}
    if not isinstance(counts.get("completion_tokens"), int):
        return None
    return Usage(
        prompt_tokens=_count(counts, "prompt_tokens"),
        cached_tokens=_count(counts.get("prompt_tokens_details"), "cached_tokens"),
        completion_tokens=_count(counts, "completion_tokens"),
        reasoning_tokens=_count(counts.get("completion_tokens_details"), "reasoning_tokens"),
    )


def _count(counts: Json, name: str) -> int:
    value = counts.get(name) if isinstance(counts, Mapping) else None
    return value if isinstance(value, int) and 0 <= value < 1 << 53 else 0  # more is no count, and no float
