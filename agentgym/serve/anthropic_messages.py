"""Anthropic's Messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agentgym.policies.conversation import CallAnswer, CallRequest
from agentgym.serve.chat_completions import call_message
from agentgym.serve.dialect import Asked, Failure, Made, data, finite
from agentgym.serve.fields import Fields
from agentgym.serve.reading import (
    as_count,
    as_flag,
    as_object,
    as_text,
    function_schema,
    named_results,
    objects,
    read_sampling,
    read_stops,
    read_text,
    refuse,
)
from agentgym.tools import Schema
from agentgym.types import Json, Message

FIELDS = Fields(
    honoured=frozenset({
        "messages", "system", "max_tokens", "stop_sequences", "stream", "tools", "context_management",
    }),
    sampling=frozenset(["temperature", "top_p", "top_k"]),
    preferred=frozenset({
        "tool_choice", "thinking", "output_config.effort",
    }),
    ignored=frozenset(["model", "metadata", "service_tier", "cache_control", "betas", "inference_geo"]),
    only={"container": (), "mcp_servers": ([],), "output_format": (), "output_config.format": ()},
    hosted=("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_"),
)  # fmt: skip
_TEXTS = frozenset(["text"])
_THOUGHTS = ("thinking", "redacted_thinking")
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


class AnthropicMessages:
    """/v1/messages; the tokens of a request are counted by /v1/messages/count_tokens."""

    def __init__(self, *, counts: bool = False) -> None:
        """counts: the request has no answer, only a number of tokens; it needs no max_tokens."""
        self._counts = counts

    def read(self, body: Mapping[str, Json]) -> Asked:
        accepted = FIELDS.check(body)
        max_tokens = as_count(body, "max_tokens")
        if max_tokens is None and not self._counts:
            refuse("is required", "max_tokens")
        _check_context_management(body.get("context_management"))
        tools, dropped = _read_tools(body)
        request = CallRequest(
            accepted=accepted,
            messages=_read_messages(body),
            tools=tools,
            dropped=dropped,
            max_tokens=max_tokens,
            stop=read_stops(body.get("stop_sequences"), "stop_sequences"),
            sampling=read_sampling(body),
        )
        thinking = as_object(body.get("thinking") or {}, "thinking")
        return Asked(
            request=request,
            model=as_text(body.get("model"), "model"),
            stream=as_flag(body, "stream"),
            thoughts=thinking.get("type") in ("enabled", "adaptive"),
        )

    def answer(self, asked: Asked, answer: CallAnswer, made: Made) -> Json:
        return {
            **_head(asked, made),
            "content": _blocks(asked, answer),
            "stop_reason": _STOP_REASONS[answer.finish],
            "stop_sequence": None,
            "usage": _usage(answer),
        }

    def events(self, asked: Asked, answer: CallAnswer, made: Made) -> Iterator[bytes]:
        def event(kind: str, **fields: Json) -> bytes:
            return data({"type": kind, **fields}, kind)

        begun: Json = {
            **_head(asked, made), "content": [], "stop_reason": None, "stop_sequence": None,
            "usage": {**_usage(answer), "output_tokens": 1},
        }  # fmt: skip
        yield event("message_start", message=begun)
        for n, block in enumerate(_blocks(asked, answer)):
            empty, deltas = _in_deltas(block)
            yield event("content_block_start", index=n, content_block=empty)
            for delta in deltas:
                yield event("content_block_delta", index=n, delta=delta)
            yield event("content_block_stop", index=n)
        ended: Json = {"stop_reason": _STOP_REASONS[answer.finish], "stop_sequence": None}
        yield event("message_delta", delta=ended, usage=_usage(answer))
        yield event("message_stop")

    def failure(self, failure: Failure) -> Json:
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kinds |= {409: "invalid_request_error", 413: "request_too_large"}
        message = failure.message
        if failure.kind == "context_length":
            message = f"prompt is too long: {message} (context_length_exceeded)"
        return {"type": "error", "error": {"type": kinds.get(failure.status, "api_error"), "message": message}}

    def failure_event(self, failure: Failure) -> bytes:
        return data(self.failure(failure), "error")


def _check_context_management(value: Json) -> None:
    """Refuses what would change the prompt: every edit but to keep all thoughts, which are not rendered again."""
    edits = as_object(value or {}, "context_management").get("edits") or []
    for _, edit in objects(edits, "context_management.edits"):
        kind = edit.get("type")
        if not (str(kind).startswith("clear_thinking_") and edit.get("keep") == "all"):
            refuse(f"the edit {json.dumps(kind)[:80]} cannot be honoured here; leave it out", "context_management")


def _system(content: Json, path: str) -> str:
    """A system message. Claude Code's block about billing changes within a conversation, and is left out."""
    if isinstance(content, list):
        content = [
            block
            for block in content
            if not (isinstance(block, Mapping) and str(block.get("text")).startswith("x-anthropic-billing-header"))
        ]
    return read_text(content, path, _TEXTS)


def _read_messages(body: Mapping[str, Json]) -> tuple[Message, ...]:
    messages: list[Message] = []
    if body.get("system") is not None:
        messages.append({"role": "system", "content": _system(body["system"], "system")})
    given = list(objects(body.get("messages"), "messages"))
    if not given:
        refuse("give at least one message", "messages")
    for path, message in given:
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            messages.append(_assistant(f"{path}.content", content))
        elif role == "user":
            messages += _user(f"{path}.content", content)
        elif role == "system":
            messages.append({"role": "system", "content": _system(content, f"{path}.content")})
        else:
            refuse(f"{json.dumps(role)[:80]} is unknown; give user, assistant or system", f"{path}.role")
    if messages[-1]["role"] == "assistant":
        refuse("the last message is the assistant's; to continue a text is not supported", "messages")
    return named_results(messages)


def _assistant(path: str, content: Json) -> Message:
    if isinstance(content, str):
        return {"role": "assistant", "content": as_text(content, path)}
    texts: list[Json] = []
    calls: list[Mapping[str, Any]] = []
    for where, block in objects(content, path):
        if block.get("type") == "tool_use":
            call_id, name = as_text(block.get("id"), f"{where}.id"), as_text(block.get("name"), f"{where}.name")
            calls.append(call_message(call_id, name, as_object(block.get("input"), f"{where}.input")))
        elif block.get("type") not in _THOUGHTS:
            texts.append(block)
    message: Message = {"role": "assistant", "content": read_text(texts, path, _TEXTS)}
    if calls:
        message["tool_calls"] = calls
    return message


def _user(path: str, content: Json) -> list[Message]:
    """Results are messages of their own, before the text that stands with them."""
    if isinstance(content, str):
        return [{"role": "user", "content": as_text(content, path)}]
    results: list[Message] = []
    texts: list[Json] = []
    for where, block in objects(content, path):
        if block.get("type") != "tool_result":
            texts.append(block)
            continue
        call_id = as_text(block.get("tool_use_id"), f"{where}.tool_use_id")
        result = read_text(block.get("content"), f"{where}.content", _TEXTS)
        results.append({"role": "tool", "content": result, "tool_call_id": call_id})
    if texts or not results:
        results.append({"role": "user", "content": read_text(texts, path, _TEXTS)})
    return results


def _read_tools(body: Mapping[str, Json]) -> tuple[tuple[Schema, ...], tuple[str, ...]]:
    """The tools that the caller runs, and what was dropped: those of a vendor."""
    tools: list[Schema] = []
    hosted: list[str] = []
    for path, tool in objects(body.get("tools") or [], "tools"):
        kind = tool.get("type")
        if str(kind).startswith(FIELDS.hosted):
            hosted.append(f"tool {kind}")
            continue
        if kind not in (None, "custom"):
            refuse(f"{json.dumps(kind)[:80]} is not supported; give custom", f"{path}.type")
        tools.append(function_schema(tool.get("name"), tool.get("description"), tool.get("input_schema"), path))
    choice = as_object(body.get("tool_choice") or {"type": "auto"}, "tool_choice").get("type")
    if choice not in ("auto", "any", "none"):
        refuse(f"{json.dumps(choice)[:80]} cannot be honoured; give auto, any or none", "tool_choice")
    return () if choice == "none" else tuple(tools), tuple(hosted)


def _head(asked: Asked, made: Made) -> dict[str, Json]:
    return {"id": f"msg_{made.number}", "type": "message", "role": "assistant", "model": asked.model}


def _blocks(asked: Asked, answer: CallAnswer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.reasoning and asked.thoughts:
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.content:
        blocks.append({"type": "text", "text": answer.content})
    for call in answer.calls:
        blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": finite(call.arguments)})
    return blocks


def _in_deltas(block: Mapping[str, Any]) -> tuple[dict[str, Json], list[Json]]:
    """A block before its first delta, and its deltas."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        thought: Json = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": ""}, [thought, {"type": "signature_delta", "signature": ""}]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]


def _usage(answer: CallAnswer) -> dict[str, Json]:
    """Tokens that were cached are counted apart, as Anthropic does it: the prompt is the sum of the first three."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": answer.completion_tokens,
    }
