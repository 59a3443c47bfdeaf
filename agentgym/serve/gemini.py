"""Google's Gemini interface: generateContent, streamed and not."""

from __future__ import annotations

import json
import re
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
    objects,
    read_sampling,
    read_stops,
    refuse,
)
from agentgym.tools import Schema
from agentgym.types import Json, Message

FIELDS = Fields(
    honoured=frozenset([
        "contents", "systemInstruction", "tools", "generationConfig.maxOutputTokens", "generationConfig.stopSequences",
    ]),
    sampling=frozenset({
        "generationConfig.temperature", "generationConfig.topP", "generationConfig.topK", "generationConfig.seed",
    }),
    preferred=frozenset(["toolConfig.functionCallingConfig.mode", "generationConfig.thinkingConfig"]),
    ignored=frozenset({
        "model", "safetySettings", "labels", "serviceTier", "toolConfig.retrievalConfig",
        "generationConfig.mediaResolution", "generationConfig.audioTimestamp", "generationConfig.routingConfig",
    }),
    only={
        "cachedContent": (), "store": (False,), "toolConfig.functionCallingConfig.allowedFunctionNames": ([],),
        "generationConfig.candidateCount": (1,), "generationConfig.responseMimeType": ("text/plain",),
        "generationConfig.responseModalities": (["TEXT"],), "generationConfig.responseSchema": (),
        "generationConfig.responseJsonSchema": (), "generationConfig.presencePenalty": (0,),
        "generationConfig.frequencyPenalty": (0,), "generationConfig.responseLogprobs": (False,),
        "generationConfig.logprobs": (), "generationConfig.enableEnhancedCivicAnswers": (False,),
        "generationConfig.speechConfig": (), "generationConfig.imageConfig": (),
    },
    hosted=(
        "codeExecution", "computerUse", "enterpriseWebSearch", "fileSearch", "googleMaps", "googleSearch",
        "googleSearchRetrieval", "mcpServers", "retrieval", "urlContext",
    ),
    closed=frozenset(["generationConfig"]),
)  # fmt: skip
_SPELLED = {"temperature": "temperature", "top_p": "topP", "top_k": "topK", "seed": "seed"}
_MODES = ("AUTO", "ANY", "VALIDATED", "NONE", "MODE_UNSPECIFIED")
_TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")  # as Google's schemas name them
_FREE = frozenset(["args", "labels", "parameters", "parametersJsonSchema", "response"])
_SIGNS = frozenset(["thought", "thoughtSignature", "partMetadata"])  # beside what a part holds
_FINISH = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}
_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 409: "ABORTED", 503: "UNAVAILABLE"}


class Gemini:
    """/v1beta/models/NAME:generateContent, :streamGenerateContent and :countTokens."""

    def __init__(self, model: str, *, streams: bool = False, events: bool = False) -> None:
        """What the path says. streams: answers are a list of parts. events: it is sent as server-sent events."""
        self._model, self._events, self._list = model, events, streams and not events

    def read(self, body: Mapping[str, Json]) -> Asked:
        try:
            body = as_object(_in_camel_case(body), "")
            body = as_object(body.get("generateContentRequest") or body, "generateContentRequest")  # of countTokens
            tools, dropped = _read_tools(body)
        except RecursionError:
            refuse("the body is nested too deep", "")
        accepted = FIELDS.check(body)
        given = as_object(body.get("generationConfig") or {}, "generationConfig")
        generation = {f"generationConfig.{name}": value for name, value in given.items()}
        thinking = generation.get("generationConfig.thinkingConfig") or {}
        stops = "generationConfig.stopSequences"
        request = CallRequest(
            accepted=accepted,
            messages=_read_messages(body),
            tools=tools,
            dropped=dropped,
            max_tokens=as_count(generation, "generationConfig.maxOutputTokens"),
            stop=read_stops(generation.get(stops), stops),
            sampling=read_sampling(generation, {name: f"generationConfig.{one}" for name, one in _SPELLED.items()}),
        )
        thoughts = as_flag(as_object(thinking, "generationConfig.thinkingConfig"), "includeThoughts")
        return Asked(request=request, model=self._model, stream=self._events, thoughts=thoughts)

    def answer(self, asked: Asked, answer: CallAnswer, made: Made) -> Json:
        whole = _whole(asked, answer, made)
        return [whole] if self._list else whole

    def events(self, asked: Asked, answer: CallAnswer, made: Made) -> Iterator[bytes]:
        yield data(_whole(asked, answer, made))

    def failure(self, failure: Failure) -> Json:
        found = google_failure(failure)
        return [found] if self._list else found

    def failure_event(self, failure: Failure) -> bytes:
        return data(google_failure(failure))


def google_failure(failure: Failure) -> Json:
    """Google's shape of an error; a context that is too long is said in its words."""
    message = failure.message
    if failure.kind == "context_length":
        message = (
            f"The input token count exceeds the maximum number of tokens allowed: {message} (context_length_exceeded)"
        )
    error: dict[str, Json] = {"code": failure.status, "message": message}
    error["status"] = _STATUS.get(failure.status, "INTERNAL" if failure.status >= 500 else "FAILED_PRECONDITION")
    if failure.param:
        violation: Json = {"field": failure.param, "description": failure.message}
        error["details"] = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]}]
    return {"error": error}


def _in_camel_case(value: Json) -> Json:
    """The names as Google's JSON has them; it takes those of its proto files too. What callers name is left alone."""
    if isinstance(value, list):
        return [_in_camel_case(one) for one in value]
    if not isinstance(value, dict):
        return value
    names = {name: re.sub(r"_([a-z])", lambda found: found[1].upper(), name) for name in value}
    return {named: value[name] if named in _FREE else _in_camel_case(value[name]) for name, named in names.items()}


def _read_messages(body: Mapping[str, Json]) -> tuple[Message, ...]:
    """The contents as messages; a response without an id answers the first open call of its name."""
    messages: list[Message] = []
    if body.get("systemInstruction") is not None:
        given = as_object(body["systemInstruction"], "systemInstruction")
        texts = [_text(path, part) for path, part in _parts(given, "systemInstruction")]
        messages.append({"role": "system", "content": "\n".join(texts)})
    contents = list(objects(body.get("contents"), "contents"))
    if not contents:
        refuse("give at least one content", "contents")
    open_calls: list[tuple[str, str]] = []  # name and id
    for number, (path, content) in enumerate(contents):
        role = content.get("role") or "user"
        if role == "model":
            messages.append(_said(content, path, number, open_calls))
        elif role in ("user", "function"):
            messages += _heard(content, path, open_calls)
        else:
            refuse(f"{json.dumps(role)[:80]} is unknown; give user or model", f"{path}.role")
    if messages[-1]["role"] == "assistant":
        refuse("the last content is the model's; to continue a text is not supported", "contents")
    return tuple(messages)


def _parts(content: Mapping[str, Json], path: str) -> Iterator[tuple[str, Mapping[str, Json]]]:
    return objects(content.get("parts") or [], f"{path}.parts")


def _text(path: str, part: Mapping[str, Json]) -> str:
    held = [name for name, value in part.items() if name not in _SIGNS and value is not None]
    if held not in (["text"], []):
        refuse(f"the part has {', '.join(held)[:80]}; this policy reads text here", path)
    return as_text(part.get("text", ""), f"{path}.text")


def _said(content: Mapping[str, Json], path: str, number: int, open_calls: list[tuple[str, str]]) -> Message:
    """The policy's turn. Its texts are pieces of one, as a stream sends them; thoughts are left out."""
    texts: list[str] = []
    calls: list[Mapping[str, Any]] = []
    for where, part in _parts(content, path):
        if part.get("functionCall") is not None:
            given = as_object(part["functionCall"], f"{where}.functionCall")
            name = as_text(given.get("name"), f"{where}.functionCall.name")
            call_id = as_text(given.get("id") or f"call_{number}_{len(calls)}", f"{where}.functionCall.id")
            arguments = as_object(given.get("args") or {}, f"{where}.functionCall.args")
            calls.append(call_message(call_id, name, arguments))
            open_calls.append((name, call_id))
        elif not as_flag(part, "thought"):
            texts.append(_text(where, part))
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return message


def _heard(content: Mapping[str, Json], path: str, open_calls: list[tuple[str, str]]) -> list[Message]:
    """Results are messages of their own, before the text that comes with them."""
    results: list[Message] = []
    texts: list[str] = []
    for where, part in _parts(content, path):
        if part.get("functionResponse") is None:
            texts.append(_text(where, part))
            continue
        given = as_object(part["functionResponse"], f"{where}.functionResponse")
        if given.get("parts"):
            refuse("this policy reads text; leave it out", f"{where}.functionResponse.parts")
        name = as_text(given.get("name"), f"{where}.functionResponse.name")
        first = next((call_id for called, call_id in open_calls if called == name), name)
        call_id = as_text(given.get("id") or first, f"{where}.functionResponse.id")
        open_calls[:] = [one for one in open_calls if one != (name, call_id)]
        result = _result(as_object(given.get("response") or {}, f"{where}.functionResponse.response"))
        results.append({"role": "tool", "content": result, "tool_call_id": call_id, "name": name})
    if texts or not results:
        results.append({"role": "user", "content": "\n".join(texts)})
    return results


def _result(response: Mapping[str, Json]) -> str:
    """What a tool returned: its output where that is all, else the object as JSON, errors too."""
    found = next(iter(response.values())) if list(response) in (["output"], ["result"]) else response
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _read_tools(body: Mapping[str, Json]) -> tuple[tuple[Schema, ...], tuple[str, ...]]:
    """The functions that the caller runs, and what was dropped: tools of Google's."""
    tools: list[Schema] = []
    hosted: list[str] = []
    for path, tool in objects(body.get("tools") or [], "tools"):
        for kind, value in tool.items():
            if kind in FIELDS.hosted:
                hosted.append(f"tool {kind}")
            elif kind != "functionDeclarations":
                refuse("is not supported; give functionDeclarations", f"{path}.{kind}")
            else:
                for where, given in objects(value or [], f"{path}.{kind}"):
                    schema = given.get("parametersJsonSchema")
                    schema = _json_schema(given.get("parameters")) if schema is None else schema
                    tools.append(function_schema(given.get("name"), given.get("description"), schema, where))
    config = as_object(body.get("toolConfig") or {}, "toolConfig")
    config = as_object(config.get("functionCallingConfig") or {}, "toolConfig.functionCallingConfig")
    mode = config.get("mode") or "AUTO"
    if mode not in _MODES:
        refuse(
            f"{json.dumps(mode)[:80]} is unknown; give one of {', '.join(_MODES)}",
            "toolConfig.functionCallingConfig.mode",
        )
    return () if mode == "NONE" else tuple(tools), tuple(hosted)


def _json_schema(schema: Json) -> Json:
    """A schema of Google's as JSON's, whose names of types are small."""
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Json] = {}
    for name, value in schema.items():
        if name == "type" and value in _TYPES:
            value = str(value).lower()
        elif name == "properties" and isinstance(value, dict):
            value = {key: _json_schema(inner) for key, inner in value.items()}
        elif name == "items":
            value = _json_schema(value)
        elif name == "anyOf" and isinstance(value, list):
            value = [_json_schema(inner) for inner in value]
        found[name] = value
    return found


def _whole(asked: Asked, answer: CallAnswer, made: Made) -> dict[str, Json]:
    parts: list[Json] = []
    if answer.reasoning and asked.thoughts:
        parts.append({"text": answer.reasoning, "thought": True})
    if answer.content or not answer.calls:
        parts.append({"text": answer.content})
    for call in answer.calls:
        parts.append({"functionCall": {"id": call.call_id, "name": call.name, "args": finite(call.arguments)}})
    content: Json = {"role": "model", "parts": parts}
    return {
        "candidates": [{"content": content, "finishReason": _FINISH[answer.finish], "index": 0}],
        "usageMetadata": {
            "promptTokenCount": answer.prompt_tokens,
            "cachedContentTokenCount": answer.cached_tokens,
            "candidatesTokenCount": answer.completion_tokens,
            "totalTokenCount": answer.prompt_tokens + answer.completion_tokens,
        },
        "modelVersion": asked.model,
        "responseId": made.number,
    }
