"""What Google's interface reads of a request and writes of an answer; `test_dialects.py` has what all do alike."""

from __future__ import annotations

import json

import pytest
from handlers import CALLS, said

from agentgym.policies.conversation import CallRefused
from agentgym.serve.calls import failure_of
from agentgym.serve.dialect import Made
from agentgym.serve.dropping import read_request
from agentgym.serve.gemini import Gemini
from agentgym.tools import ToolCall

GEMINI, MADE = Gemini("m", streams=True, events=True), Made("a", 5)
GEMINI_BODY = {"contents": [{"parts": [{"text": "hi"}]}]}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
ANSWER = said("I add.", reasoning="hm", calls=CALLS, finish="tool_calls")


def gemini_body(*, ids: bool) -> dict:
    """A conversation, with ids of calls and without."""
    names = [{"id": "c1"}, {"id": "c2"}] if ids else [{}, {}]
    calls = [{"functionCall": {**name, "name": "add", "args": {"a": n}}} for n, name in enumerate(names, 1)]
    given = [{"output": "3"}, {"error": "?", "at": 1}]
    results = [
        {"functionResponse": {**name, "name": "add", "response": response}}
        for name, response in zip(names, given, strict=True)
    ]
    thought = {"text": "hm", "thought": True, "thoughtSignature": "any"}
    schema = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}}
    declared = {**FUNCTION, "parameters": schema} if ids else {**FUNCTION, "parameters_json_schema": PARAMETERS}
    declared = {name: value for name, value in declared.items() if ids or name != "parameters"}
    return {
        "system_instruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "1 + 2?"}, {"text": "Please."}]},
            {"role": "model", "parts": [thought, {"text": "I "}, {"text": "add."}, *calls]},
            {"role": "user", "parts": [*results, {"text": "Sure?"}]},
        ],
        "tools": [{"functionDeclarations": [declared]}, {"google_search": {}}],
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "generationConfig": {"max_output_tokens": 7, "stopSequences": ["END"], "topK": 64, "topP": 0.95, "seed": 3},
    }


@pytest.mark.parametrize("ids", [True, False])
def test_gemini_reads_parts_as_the_messages_that_they_are(ids) -> None:
    request = GEMINI.read(gemini_body(ids=ids)).request
    system, asks, calls, first, second, last = request.messages
    said_or_heard = [(message["role"], message["content"]) for message in (system, asks, calls, last)]
    assert said_or_heard == [
        ("system", "Be brief."), ("user", "1 + 2?\nPlease."), ("assistant", "I add."), ("user", "Sure?"),
    ]  # fmt: skip
    assert [call["function"]["arguments"] for call in calls["tool_calls"]] == [{"a": 1}, {"a": 2}]
    assert [result["content"] for result in (first, second)] == ["3", '{"error": "?", "at": 1}']
    assert [result["tool_call_id"] for result in (first, second)] == [call["id"] for call in calls["tool_calls"]]
    assert first["tool_call_id"] != second["tool_call_id"]
    assert (request.tools, request.dropped) == ((TOOL,), ("tool googleSearch",))
    assert (request.stop, request.max_tokens, request.accepted) == (("END",), 7, ("safetySettings",))
    assert request.sampling == {"top_k": 64, "top_p": 0.95, "seed": 3}


def test_tools_that_must_not_be_called_are_not_told() -> None:
    declared = {**GEMINI_BODY, "tools": [{"functionDeclarations": [FUNCTION]}]}
    modes = {"NONE": (), "ANY": (TOOL,)}
    for mode, tools in modes.items():
        assert GEMINI.read({**declared, "toolConfig": {"functionCallingConfig": {"mode": mode}}}).request.tools == tools


ONLY_ADD = {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["add"]}}}
REFUSED = [
    ({"cachedContent": "cachedContents/1"}, "cachedContent"),
    ({"temperature": 1}, "temperature"),
    ({"contents": []}, "contents"),
    ({"contents": [{"role": "model", "parts": [{"text": "It is"}]}]}, "contents"),
    ({"contents": [{"role": "robot", "parts": []}]}, "contents[0].role"),
    ({"contents": [{"parts": [{"inlineData": {}}]}]}, "contents[0].parts[0]"),
    ({"tools": [{"functions": []}]}, "tools[0].functions"),
    ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
    (ONLY_ADD, "toolConfig.functionCallingConfig.allowedFunctionNames"),
    ({"toolConfig": {"functionCallingConfig": 1}}, "toolConfig.functionCallingConfig"),
    ({"generation_config": {"candidateCount": 2}}, "generationConfig.candidateCount"),
    ({"generationConfig": {"topN": 2}}, "generationConfig.topN"),
    ({"generationConfig": {"topP": 2}}, "generationConfig.topP"),
    ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
    ({"generationConfig": {"responseSchema": {}}}, "generationConfig.responseSchema"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_its_name(change, param) -> None:
    with pytest.raises(CallRefused) as refused:
        GEMINI.read({**GEMINI_BODY, **change})
    assert (refused.value.kind, refused.value.param) == ("invalid", param)
    error = GEMINI.failure(failure_of(refused.value))["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert error["details"][0]["fieldViolations"][0]["field"] == param


def written(body: dict) -> list[dict]:
    """The data of each event."""
    sent = b"".join(GEMINI.events(GEMINI.read(body), ANSWER, MADE)).decode().split("\n\n")[:-1]
    return [json.loads(event.removeprefix("data: ")) for event in sent]


def test_gemini_reads_back_what_it_wrote_and_shows_thoughts_only_where_they_are_asked_for() -> None:
    [plain] = written(GEMINI_BODY)
    assert plain == Gemini("m").answer(GEMINI.read(GEMINI_BODY), ANSWER, MADE)
    assert [plain] == Gemini("m", streams=True).answer(GEMINI.read(GEMINI_BODY), ANSWER, MADE)
    [candidate], usage = plain["candidates"], plain["usageMetadata"]
    assert (candidate["finishReason"], usage["promptTokenCount"], usage["totalTokenCount"]) == ("STOP", 10, 13)
    shows = {**GEMINI_BODY, "generationConfig": {"thinkingConfig": {"includeThoughts": True, "thinkingBudget": -1}}}
    [shown] = written(shows)
    thought, *parts = shown["candidates"][0]["content"]["parts"]
    assert thought == {"text": "hm", "thought": True} and parts == candidate["content"]["parts"]
    resent = GEMINI.read({"contents": [{"parts": []}, shown["candidates"][0]["content"], {"parts": []}]})
    said_again = resent.request.messages[1]
    assert said_again["content"] == "I add."
    assert [ToolCall(call["function"]["name"], call["function"]["arguments"], call["id"])
            for call in said_again["tool_calls"]] == list(CALLS)  # fmt: skip


def test_a_result_without_an_id_answers_the_open_call_of_its_name() -> None:
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("add", "sub", "add")]
    results = [{"functionResponse": {"name": name, "response": {"result": 1}}} for name in ("sub", "add", "add")]
    contents = [GEMINI_BODY["contents"][0], {"role": "model", "parts": calls}, {"role": "user", "parts": results}]
    _, said_before, *heard = GEMINI.read({"contents": contents}).request.messages
    first, second, third = [call["id"] for call in said_before["tool_calls"]]
    assert [result["tool_call_id"] for result in heard] == [second, first, third]


def test_a_body_that_is_nested_too_deep_is_refused() -> None:
    deep: list = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(CallRefused, match="nested too deep"):
        GEMINI.read({"contents": deep})


def test_a_field_that_may_be_dropped_is_found_in_both_spellings() -> None:
    for name, field in (("generationConfig", "responseSchema"), ("generation_config", "response_schema")):
        body = {**GEMINI_BODY, name: {field: {}, "seed": 1}}
        request = read_request(GEMINI, body, ["generationConfig.responseSchema"]).request
        assert (request.dropped, request.sampling) == (("generationConfig.responseSchema",), {"seed": 1})
