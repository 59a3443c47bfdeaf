"""OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from agentgym.policies.conversation import CallAnswer, CallRequest
from agentgym.serve.dialect import Asked, Failure, Made, data
from agentgym.serve.fields import Fields
from agentgym.serve.reading import (
    as_count,
    as_flag,
    as_object,
    as_text,
    function_schema,
    named_results,
    objects,
    read_arguments,
    read_sampling,
    read_stops,
    read_text,
    refuse,
)
from agentgym.tools import Schema
from agentgym.types import Json, Message

FIELDS = Fields(
    honoured=frozenset({
        "messages", "tools", "max_tokens", "max_completion_tokens", "stop", "stream", "stream_options",
    }),
    sampling=frozenset(["temperature", "top_p", "top_k", "seed"]),
    preferred=frozenset({
        "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity",
    }),
    ignored=frozenset({
        "model", "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "include_reasoning",
    }),
    only={
        "n": (1,), "best_of": (1,), "logit_bias": ({},), "logprobs": (False,), "top_logprobs": (0,), "min_p": (0,),
        "response_format": ({"type": "text"},), "presence_penalty": (0,), "frequency_penalty": (0,),
        "repetition_penalty": (1,), "modalities": (["text"],), "store": (False,), "audio": (), "prediction": (),
        "web_search_options": (), "functions": (), "function_call": (), "echo": (False,),
    },
)  # fmt: skip
_TEXTS = frozenset(["text"])
_FINISH = {"stop": "stop", "tool_calls": "tool_calls", "length": "length"}


class ChatCompletions:
    """/v1/chat/completions."""

    def read(self, body: Mapping[str, Json]) -> Asked:
        accepted = FIELDS.check(body)
        options = as_object(body.get("stream_options") or {}, "stream_options")
        caps = [cap for name in ("max_tokens", "max_completion_tokens") if (cap := as_count(body, name)) is not None]
        request = CallRequest(
            accepted=accepted,
            messages=read_messages(body.get("messages")),
            tools=read_tools(body),
            max_tokens=min(caps, default=None),
            stop=read_stops(body.get("stop"), "stop"),
            sampling=read_sampling(body),
        )
        return Asked(
            request=request,
            model=as_text(body.get("model"), "model"),
            stream=as_flag(body, "stream"),
            usage=as_flag(options, "include_usage"),
        )

    def answer(self, asked: Asked, answer: CallAnswer, made: Made) -> Json:
        message: dict[str, Json] = {"role": "assistant", "content": _content(answer), "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = calls_json(answer)
        choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[answer.finish]}
        return {**_head(asked, made, "chat.completion"), "choices": [choice], "usage": _usage(answer)}

    def events(self, asked: Asked, answer: CallAnswer, made: Made) -> Iterator[bytes]:
        head = _head(asked, made, "chat.completion.chunk")

        def chunk(delta: Mapping[str, Json], finish: str | None = None) -> bytes:
            choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return data({**head, "choices": [choice], **({"usage": None} if asked.usage else {})})

        yield chunk({"role": "assistant", "content": "" if _content(answer) is not None else None})
        if answer.reasoning:
            yield chunk({"reasoning_content": answer.reasoning})
        if answer.content:
            yield chunk({"content": answer.content})
        for n, call in enumerate(calls_json(answer)):
            yield chunk({"tool_calls": [{"index": n, **call}]})
        yield chunk({}, _FINISH[answer.finish])
        if asked.usage:
            yield data({**head, "choices": [], "usage": _usage(answer)})
        yield b"data: [DONE]\n\n"

    def failure(self, failure: Failure) -> Json:
        return openai_failure(failure)

    def failure_event(self, failure: Failure) -> bytes:
        return data(openai_failure(failure)) + b"data: [DONE]\n\n"


def read_messages(value: Json) -> tuple[Message, ...]:
    """Raises CallRefused for an empty list, too."""
    messages = [_message(path, given) for path, given in objects(value, "messages")]
    if not messages:
        refuse("give at least one message", "messages")
    return named_results(messages)


def _message(path: str, given: Mapping[str, Json]) -> Message:
    role = given.get("role")
    content = read_text(given.get("content"), f"{path}.content", _TEXTS)
    if role in ("system", "developer"):
        return {"role": "system", "content": content}
    if role == "user":
        return {"role": "user", "content": content}
    if role == "tool":
        call_id = as_text(given.get("tool_call_id"), f"{path}.tool_call_id")
        return {"role": "tool", "content": content, "tool_call_id": call_id}
    if role != "assistant":
        refuse(f"{json.dumps(role)[:80]} is unknown; give system, developer, user, assistant or tool", f"{path}.role")
    if given.get("function_call") is not None:
        refuse("this old way of calling is not supported; give tool_calls", f"{path}.function_call")
    calls = [_call(where, call) for where, call in objects(given.get("tool_calls") or [], f"{path}.tool_calls")]
    message: Message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [*calls]
    return message


def _call(path: str, given: Mapping[str, Json]) -> dict[str, Json]:
    if given.get("type", "function") != "function":
        refuse(f"{json.dumps(given.get('type'))[:80]} is not supported; give function", f"{path}.type")
    function = as_object(given.get("function"), f"{path}.function")
    return call_message(
        as_text(given.get("id"), f"{path}.id"),
        as_text(function.get("name"), f"{path}.function.name"),
        read_arguments(function.get("arguments") or "{}", f"{path}.function.arguments"),
    )


def call_message(call_id: str, name: str, arguments: Json) -> dict[str, Json]:
    """A call in a message, as chat templates take it."""
    return {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}


def read_tools(body: Mapping[str, Json]) -> tuple[Schema, ...]:
    """The tools that the policy is told; none where it shall call none."""
    tools: list[Schema] = []
    for path, tool in objects(body.get("tools") or [], "tools"):
        if tool.get("type") != "function":
            refuse(f"{json.dumps(tool.get('type'))[:80]} is not supported; give function", f"{path}.type")
        function = as_object(tool.get("function"), f"{path}.function")
        tools.append(
            function_schema(
                function.get("name"), function.get("description"), function.get("parameters"), f"{path}.function"
            )
        )
    return () if read_choice(body) == "none" else tuple(tools)


def read_choice(body: Mapping[str, Json]) -> str:
    """auto, required or none. Raises CallRefused for a tool's name, which cannot be forced on a policy."""
    choice = body.get("tool_choice")
    if choice is None:
        return "auto"
    if choice not in ("auto", "required", "none"):
        refuse(f"{json.dumps(choice)[:80]} cannot be honoured; give auto, required or none", "tool_choice")
    return str(choice)


def calls_json(answer: CallAnswer) -> list[dict[str, Json]]:
    return [call_message(call.call_id, call.name, json.dumps(call.arguments)) for call in answer.calls]


def _content(answer: CallAnswer) -> str | None:
    return None if answer.calls and not answer.content else answer.content


def _head(asked: Asked, made: Made, kind: str) -> dict[str, Json]:
    return {"id": f"chatcmpl-{made.number}", "object": kind, "created": made.created, "model": asked.model}


def _usage(answer: CallAnswer) -> Json:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


_CODES = {"context_length": "context_length_exceeded", "key": "invalid_api_key", "ended": "episode_ended"}


def openai_failure(failure: Failure) -> Json:
    """OpenAI's shape of an error. Agents know a context that is too long by its code, or by these words."""
    message = failure.message
    if failure.kind == "context_length":
        message = f"This model's maximum context length is exceeded: {message}"
    kind = "server_error" if failure.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": message, "type": kind, "param": failure.param or None, "code": _CODES.get(failure.kind)
        }
    }  # fmt: skip
