"""OpenAI's Responses. Nothing is stored: the caller sends the whole conversation each time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgym.policies.conversation import CallAnswer, CallRequest
from agentgym.serve.chat_completions import call_message, openai_failure, read_choice
from agentgym.serve.dialect import Asked, Failure, Made, data
from agentgym.serve.fields import Fields
from agentgym.serve.reading import (
    as_count,
    as_flag,
    as_text,
    function_schema,
    named_results,
    objects,
    read_arguments,
    read_sampling,
    read_text,
    refuse,
)
from agentgym.tools import Schema
from agentgym.types import Json, Message

FIELDS = Fields(
    honoured=frozenset(["input", "instructions", "tools", "max_output_tokens", "stream"]),
    sampling=frozenset(["temperature", "top_p"]),
    preferred=frozenset([
        "tool_choice", "parallel_tool_calls", "reasoning", "text.verbosity",
    ]),
    ignored=frozenset({
        "model", "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "include", "stream_options", "client_metadata",
    }),
    only={
        "store": (False,), "previous_response_id": (), "conversation": (), "background": (False,), "prompt": (),
        "truncation": ("disabled",), "max_tool_calls": (), "top_logprobs": (0,), "context_management": (),
        "text.format": ({"type": "text"},),
    },
    hosted=("web_search", "file_search", "code_interpreter", "image_generation", "mcp"),
)  # fmt: skip
_TEXTS = frozenset(["input_text", "output_text", "text"])


class Responses:
    """/v1/responses."""

    def read(self, body: Mapping[str, Json]) -> Asked:
        accepted = FIELDS.check(body)
        found = _read_tools(body)
        request = CallRequest(
            accepted=accepted,
            messages=_read_input(body),
            tools=() if read_choice(body) == "none" else tuple(found.tools),
            dropped=tuple(found.hosted),
            max_tokens=as_count(body, "max_output_tokens"),
            sampling=read_sampling(body),
        )
        shown: dict[str, Json] = {
            name: body.get(name)
            for name in ("instructions", "max_output_tokens", "temperature", "top_p", "user", "reasoning")
        }
        shown |= {"tools": body.get("tools") or [], "tool_choice": read_choice(body)}
        shown |= {"metadata": body.get("metadata") or {}, "parallel_tool_calls": True}
        model = as_text(body.get("model"), "model")
        return Asked(
            request=request, model=model, stream=as_flag(body, "stream"), shown=shown, namespaces=found.namespaces
        )

    def answer(self, asked: Asked, answer: CallAnswer, made: Made) -> Json:
        return _response(asked, made, _items(asked, answer, made), answer)

    def events(self, asked: Asked, answer: CallAnswer, made: Made) -> Iterator[bytes]:
        number = 0

        def event(kind: str, **fields: Json) -> bytes:
            nonlocal number
            number += 1
            return data({"type": kind, "sequence_number": number - 1, **fields}, kind)

        for kind in ("response.created", "response.in_progress"):
            yield event(kind, response=_response(asked, made, [], None))
        items = _items(asked, answer, made)
        for n, item in enumerate(items):
            yield event("response.output_item.added", output_index=n, item=_begun(item))
            for kind, fields in _parts(item):
                yield event(kind, item_id=item["id"], output_index=n, **fields)
            yield event("response.output_item.done", output_index=n, item=item)
        whole = _response(asked, made, items, answer)
        yield event(f"response.{whole['status']}", response=whole)

    def failure(self, failure: Failure) -> Json:
        return openai_failure(failure)

    def failure_event(self, failure: Failure) -> bytes:
        found: Any = openai_failure(failure)
        error = found["error"]
        shown: Json = {name: error[name] for name in ("code", "message", "param")}
        return data({"type": "error", "sequence_number": 0, **shown}, "error")  # type: ignore[dict-item]


def _read_input(body: Mapping[str, Json]) -> tuple[Message, ...]:
    messages: list[Message] = []
    if body.get("instructions") is not None:
        messages.append({"role": "system", "content": as_text(body["instructions"], "instructions")})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": as_text(given, "input")})
        return tuple(messages)
    open_turn = False  # whether the next call belongs to the last message
    items = list(objects(given, "input"))
    if not items:
        refuse("give at least one item", "input")
    for path, item in items:
        kind = item.get("type", "message")
        if kind == "reasoning":
            continue
        if kind == "function_call":
            if not open_turn:
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_read_call(path, item))
            open_turn = True
        else:
            messages.append(_message(path, item, kind))
            open_turn = messages[-1]["role"] == "assistant"
    return named_results(messages)


def _message(path: str, item: Mapping[str, Json], kind: Json) -> Message:
    if kind == "function_call_output":
        content = read_text(item.get("output"), f"{path}.output", _TEXTS)
        return {"role": "tool", "content": content, "tool_call_id": as_text(item.get("call_id"), f"{path}.call_id")}
    if kind != "message":
        known = "message, function_call, function_call_output, reasoning"
        refuse(f"{json.dumps(kind)[:80]} is not supported; give one of {known}", f"{path}.type")
    content = read_text(item.get("content"), f"{path}.content", _TEXTS)
    match item.get("role"):
        case "system" | "developer":
            return {"role": "system", "content": content}
        case "user":
            return {"role": "user", "content": content}
        case "assistant":
            return {"role": "assistant", "content": content}
        case role:
            refuse(f"{json.dumps(role)[:80]} is unknown; give system, developer, user or assistant", f"{path}.role")


def _read_call(path: str, item: Mapping[str, Json]) -> dict[str, Json]:
    return call_message(
        as_text(item.get("call_id"), f"{path}.call_id"),
        _joined_name(item.get("namespace"), as_text(item.get("name"), f"{path}.name"), path),
        read_arguments(item.get("arguments") or "{}", f"{path}.arguments"),
    )


@dataclass(slots=True)
class _Tools:
    """tools: those that the caller runs, whose names have their namespace. hosted: those that a vendor would run.

    namespaces: the namespace of each tool that has one, by its name with it.
    """

    tools: list[Schema] = field(default_factory=list)
    namespaces: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    hosted: list[str] = field(default_factory=list)


def _read_tools(body: Mapping[str, Json]) -> _Tools:
    """The tools, those of namespaces among them; what a vendor would run is dropped."""
    found = _Tools()
    for path, tool in objects(body.get("tools") or [], "tools"):
        if tool.get("type") != "namespace":
            _read_tool(found, path, tool, None)
            continue
        namespace = as_text(tool.get("name"), f"{path}.name")
        for inner_path, inner in objects(tool.get("tools") or [], f"{path}.tools"):
            _read_tool(found, inner_path, inner, namespace)
    return found


def _read_tool(found: _Tools, path: str, tool: Mapping[str, Json], namespace: str | None) -> None:
    kind = tool.get("type")
    if str(kind).startswith(FIELDS.hosted):
        found.hosted.append(f"tool {kind}")
        return
    if kind != "function":
        refuse(f"{json.dumps(kind)[:80]} is not supported; give function", f"{path}.type")
    name = _joined_name(namespace, as_text(tool.get("name"), f"{path}.name"), path)
    found.tools.append(function_schema(name, tool.get("description"), tool.get("parameters"), path))
    if name in found.names:
        refuse(f"{name!r} is the name of two tools, so a call of it would be ambiguous", f"{path}.name")
    found.names.add(name)
    if namespace is not None:
        found.namespaces[name] = namespace


def _joined_name(namespace: Json, name: str, path: str) -> str:
    """A tool's name as the policy reads it."""
    return name if namespace is None else f"{as_text(namespace, f'{path}.namespace')}.{name}"


def _in_namespace(name: str, namespaces: Mapping[str, str]) -> dict[str, Json]:
    """A call's name as the caller gave it."""
    namespace = namespaces.get(name)
    return {"name": name} if namespace is None else {"name": name.removeprefix(f"{namespace}."), "namespace": namespace}


def _items(asked: Asked, answer: CallAnswer, made: Made) -> list[dict[str, Any]]:
    """The output: a thought, a text and calls, those that there are; at least a text."""
    status = "incomplete" if answer.finish == "length" else "completed"
    items: list[dict[str, Any]] = []
    if answer.reasoning:
        thought = {"type": "reasoning_text", "text": answer.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{made.number}", "summary": [], "content": [thought]})
    if answer.content or not answer.calls:
        part = {"type": "output_text", "text": answer.content, "annotations": [], "logprobs": []}
        said = {"type": "message", "id": f"msg_{made.number}", "status": status, "role": "assistant", "content": [part]}
        items.append(said)
    for n, call in enumerate(answer.calls):
        made_call = {"type": "function_call", "id": f"fc_{made.number}{n:02d}", "status": "completed"}
        named = _in_namespace(call.name, asked.namespaces)
        items.append({**made_call, "call_id": call.call_id, **named, "arguments": json.dumps(call.arguments)})
    return items


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item before its first part."""
    begun = {**item, "arguments": ""} if item["type"] == "function_call" else {**item, "content": []}
    return {**begun, "status": "in_progress"}


def _parts(item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Json]]]:
    """The events between an item's beginning and its end."""
    if item["type"] == "function_call":
        yield "response.function_call_arguments.delta", {"delta": item["arguments"]}
        yield "response.function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}
        return
    [part] = item["content"]
    at: dict[str, Json] = {"content_index": 0}
    if item["type"] == "reasoning":
        yield "response.reasoning_text.delta", {**at, "delta": part["text"]}
        yield "response.reasoning_text.done", {**at, "text": part["text"]}
        return
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    if part["text"]:
        yield "response.output_text.delta", {**at, "delta": part["text"], "logprobs": []}
    yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}


def _response(asked: Asked, made: Made, items: list[dict[str, Any]], answer: CallAnswer | None) -> dict[str, Json]:
    """answer: None while there is none."""
    status, incomplete = "in_progress", None
    usage: Json = None
    if answer is not None:
        status = "incomplete" if answer.finish == "length" else "completed"
        incomplete = {"reason": "max_output_tokens"} if answer.finish == "length" else None
        usage = {
            "input_tokens": answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": answer.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        }
    return {
        "id": f"resp_{made.number}", "object": "response", "created_at": made.created, "model": asked.model,
        "status": status, "error": None, "incomplete_details": incomplete, "output": items, "usage": usage,
        "previous_response_id": None, "store": False, "truncation": "disabled", "background": False,
        "text": {"format": {"type": "text"}}, **asked.shown,
    }  # fmt: skip
