"""What each dialect reads of a request and writes of an answer; the real clients read them in `clients/`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from handlers import CALLS, said
from hypothesis import example, given
from hypothesis import strategies as st

from agentgym.policies.conversation import CallRefused
from agentgym.serve.anthropic_messages import AnthropicMessages
from agentgym.serve.chat_completions import ChatCompletions
from agentgym.serve.dialect import Failure, Made
from agentgym.serve.dropping import read_request
from agentgym.serve.fields_table import written
from agentgym.serve.gemini import Gemini
from agentgym.serve.responses import Responses
from agentgym.tools import ToolCall

CHAT, RESPONSES, MESSAGES = ChatCompletions(), Responses(), AnthropicMessages()
GEMINI = Gemini("m", streams=True, events=True)
MADE = Made("abc", 5)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "add", "description": "Adds.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
CHAT_BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES_BODY = {"model": "m", "input": "hi"}
MESSAGES_BODY = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
GEMINI_BODY = {"contents": [{"parts": [{"text": "hi"}]}]}
CONVERSATION = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 2?\nPlease."},
    {
        "role": "assistant",
        "content": "I add.",
        "tool_calls": [
            {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}},
            {"type": "function", "id": "c2", "function": {"name": "add", "arguments": "{a: 2"}},
        ],
    },
    {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
    {"role": "tool", "content": "?", "tool_call_id": "c2", "name": "add"},
    {"role": "user", "content": "Sure?"},
)


def test_one_conversation_is_the_same_request_in_chat_and_in_responses() -> None:
    chat = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "1 + 2?"}, {"type": "text", "text": "Please."}]},
            {
                "role": "assistant",
                "content": "I add.",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{ "a":1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "add", "arguments": "{a: 2"}},
                ],
            },
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
            {"role": "tool", "content": [{"type": "text", "text": "?"}], "tool_call_id": "c2"},
            {"role": "user", "content": "Sure?"},
        ],
        "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}],
        "max_tokens": 7,
    }
    responses = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "1 + 2?\nPlease."}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
            {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{a: 2"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
            {"type": "function_call_output", "call_id": "c2", "output": "?"},
            {"role": "user", "content": "Sure?"},
        ],
        "tools": [{"type": "function", **FUNCTION, "strict": True}],
        "max_output_tokens": 7,
    }
    read = CHAT.read(chat).request
    assert read.messages == CONVERSATION
    assert (read.tools, read.max_tokens) == ((TOOL,), 7)
    assert RESPONSES.read(responses).request == read


def test_messages_reads_blocks_as_the_messages_that_they_are() -> None:
    use = {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "3"}]}
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "1 + 2?"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, use]},
            {"role": "user", "content": [result, {"type": "text", "text": "Sure?"}]},
        ],
        "tools": [{"name": "add", "description": "Adds.", "input_schema": PARAMETERS}],
        "stop_sequences": ["END"],
        "top_k": 5,
    }
    request = MESSAGES.read(body).request
    call = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}}
    assert request.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
        {"role": "user", "content": "Sure?"},
    )
    assert (request.tools, request.stop, request.sampling, request.max_tokens) == ((TOOL,), ("END",), {"top_k": 5}, 9)


def test_sampling_stops_and_caps_are_passed_on() -> None:
    asked = CHAT.read(
        {**CHAT_BODY, "temperature": 0, "top_p": 0.5, "top_k": -1, "seed": 3, "stop": "END", "n": 1}
        | {"max_tokens": 9, "max_completion_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    )
    assert asked.request.sampling == {"temperature": 0, "top_p": 0.5, "top_k": 0, "seed": 3}
    assert (asked.request.stop, asked.request.max_tokens) == (("END",), 4)
    assert (asked.stream, asked.usage) == (True, True)


def test_tools_that_must_not_be_called_are_not_told() -> None:
    assert CHAT.read({**CHAT_BODY, "tools": [TOOL], "tool_choice": "none"}).request.tools == ()
    assert CHAT.read({**CHAT_BODY, "tools": [TOOL], "tool_choice": "required"}).request.tools == (TOOL,)


IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
REFUSED = [
    (CHAT, CHAT_BODY, {"n": 2}, "n"),
    (CHAT, CHAT_BODY, {"logit_bias": {"1": 5}}, "logit_bias"),
    (CHAT, CHAT_BODY, {"response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, CHAT_BODY, {"logprobs": True}, "logprobs"),
    (CHAT, CHAT_BODY, {"presence_penalty": 0.5}, "presence_penalty"),
    (CHAT, CHAT_BODY, {"temprature": 1}, "temprature"),
    (CHAT, CHAT_BODY, {"temperature": "hot"}, "temperature"),
    (CHAT, CHAT_BODY, {"temperature": 2.5}, "temperature"),
    (CHAT, CHAT_BODY, {"top_p": 0}, "top_p"),
    (CHAT, CHAT_BODY, {"top_k": 1.5}, "top_k"),
    (CHAT, CHAT_BODY, {"seed": 1.5}, "seed"),
    (CHAT, CHAT_BODY, {"max_tokens": 0}, "max_tokens"),
    (CHAT, CHAT_BODY, {"max_tokens": True}, "max_tokens"),
    (CHAT, CHAT_BODY, {"stop": ["a", ""]}, "stop"),
    (CHAT, CHAT_BODY, {"stop": ["a"] * 17}, "stop"),
    (CHAT, CHAT_BODY, {"stream": "yes"}, "stream"),
    (CHAT, CHAT_BODY, {"model": None}, "model"),
    (CHAT, CHAT_BODY, {"messages": []}, "messages"),
    (CHAT, CHAT_BODY, {"messages": "hi"}, "messages"),
    (CHAT, CHAT_BODY, {"messages": ["hi"]}, "messages[0]"),
    (CHAT, CHAT_BODY, {"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
    (CHAT, CHAT_BODY, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (CHAT, CHAT_BODY, {"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0]"),
    (CHAT, CHAT_BODY, {"messages": [{"role": "tool", "content": "3"}]}, "messages[0].tool_call_id"),
    (CHAT, CHAT_BODY, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
    (CHAT, CHAT_BODY, {"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    (CHAT, CHAT_BODY, {"tools": [TOOL], "tool_choice": TOOL}, "tool_choice"),
    (RESPONSES, RESPONSES_BODY, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, RESPONSES_BODY, {"store": True}, "store"),
    (RESPONSES, RESPONSES_BODY, {"truncation": "auto"}, "truncation"),
    (RESPONSES, RESPONSES_BODY, {"text": {"format": {"type": "json_object"}}}, "text.format"),
    (RESPONSES, RESPONSES_BODY, {"input": []}, "input"),
    (RESPONSES, RESPONSES_BODY, {"input": [{"type": "item_reference", "id": "1"}]}, "input[0].type"),
    (RESPONSES, RESPONSES_BODY, {"tools": [{"type": "local_shell"}]}, "tools[0].type"),
    (
        MESSAGES,
        MESSAGES_BODY,
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        "context_management",
    ),
    (RESPONSES, RESPONSES_BODY, {"tool_choice": {"type": "function", "name": "add"}}, "tool_choice"),
    (MESSAGES, MESSAGES_BODY, {"max_tokens": None}, "max_tokens"),
    (MESSAGES, MESSAGES_BODY, {"messages": [{"role": "assistant", "content": "It is"}]}, "messages"),
    (MESSAGES, MESSAGES_BODY, {"tool_choice": {"type": "tool", "name": "add"}}, "tool_choice"),
    (MESSAGES, MESSAGES_BODY, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
    (MESSAGES, MESSAGES_BODY, {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
]


@pytest.mark.parametrize(("dialect", "body", "change", "param"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_its_name(dialect, body, change, param) -> None:
    dialect.read(body)
    with pytest.raises(CallRefused) as refused:
        dialect.read({**body, **change})
    assert (refused.value.kind, refused.value.param) == ("invalid", param)
    assert param in str(refused.value)


NAMES = st.sampled_from([
    "role", "content", "type", "text", "function", "name", "id", "call_id", "tool_calls", "parts", "functionCall",
    "functionResponse", "functionDeclarations", "parameters", "args", "response", "properties",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(0, 1) | st.sampled_from(["", "user", "function"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner),
    max_leaves=8,
)
FIELDS = ["tools", "tool_choice", "stop", "stop_sequences", "system", "instructions", "stream_options", "text"]
FIELDS += ["contents", "systemInstruction", "toolConfig", "generationConfig"]
BODIES = {CHAT: CHAT_BODY, RESPONSES: RESPONSES_BODY, MESSAGES: MESSAGES_BODY, GEMINI: GEMINI_BODY}


@example(dialect=MESSAGES, name="system", value=[{"type": []}])
@given(dialect=st.sampled_from(list(BODIES)), name=st.sampled_from(["messages", "input", *FIELDS]), value=JSON)
def test_no_json_makes_a_dialect_fail_otherwise_than_by_refusing(dialect, name, value) -> None:
    try:
        dialect.read({**BODIES[dialect], name: value})
    except CallRefused as refused:
        assert refused.kind == "invalid"


def events(dialect, body, answer) -> list[dict]:
    """The data of each event; the name of an event is its type."""
    found = []
    for event in b"".join(dialect.events(dialect.read(body), answer, MADE)).decode().split("\n\n")[:-1]:
        *name, data = event.splitlines()
        if data == "data: [DONE]":
            continue
        found.append(json.loads(data.removeprefix("data: ")))
        assert not name or name == [f"event: {found[-1]['type']}"]
    return found


ANSWER = said("I add.", reasoning="hm", calls=CALLS, finish="tool_calls")


def test_chat_writes_the_answer_whole_and_in_chunks() -> None:
    whole = CHAT.answer(CHAT.read(CHAT_BODY), ANSWER, MADE)
    [choice] = whole["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"]) == ("I add.", "hm")
    assert [(c["id"], json.loads(c["function"]["arguments"])) for c in message["tool_calls"]] == [
        ("call1", {"a": 1}), ("call2", {"a": 2}),
    ]  # fmt: skip
    assert whole["usage"]["total_tokens"] == 13
    body = {**CHAT_BODY, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(CHAT, body, ANSWER)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I add."
    calls = [{**call, "index": None} for delta in deltas for call in delta.get("tool_calls", [])]
    assert calls == [{**call, "index": None} for call in message["tool_calls"]]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert all("usage" not in chunk for chunk in events(CHAT, {**CHAT_BODY, "stream": True}, ANSWER))


def test_responses_last_event_is_the_whole_answer() -> None:
    whole = RESPONSES.answer(RESPONSES.read(RESPONSES_BODY), ANSWER, MADE)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert whole["usage"]["total_tokens"] == 13 and whole["status"] == "completed"
    streamed = events(RESPONSES, {**RESPONSES_BODY, "stream": True}, ANSWER)
    assert streamed[-1]["type"] == "response.completed" and streamed[-1]["response"] == whole
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    done = [event["item"] for event in streamed if event["type"] == "response.output_item.done"]
    assert done == whole["output"]


def test_messages_shows_thoughts_only_where_they_are_asked_for() -> None:
    plain = MESSAGES.answer(MESSAGES.read(MESSAGES_BODY), ANSWER, MADE)
    assert [block["type"] for block in plain["content"]] == ["text", "tool_use", "tool_use"]
    assert plain["stop_reason"] == "tool_use"
    assert plain["usage"]["input_tokens"] + plain["usage"]["cache_read_input_tokens"] == 10
    body = {**MESSAGES_BODY, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    assert MESSAGES.answer(MESSAGES.read(body), ANSWER, MADE)["content"][0]["thinking"] == "hm"
    streamed = events(MESSAGES, body, ANSWER)
    starts = [event["content_block"]["type"] for event in streamed if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use", "tool_use"]
    deltas = [event["delta"] for event in streamed if event["type"] == "content_block_delta"]
    assert [json.loads(d["partial_json"]) for d in deltas if "partial_json" in d] == [{"a": 1}, {"a": 2}]
    assert streamed[-2]["usage"]["output_tokens"] == 3


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES, GEMINI])
def test_an_answer_cut_by_its_length_says_so(dialect) -> None:
    whole = dialect.answer(dialect.read(BODIES[dialect]), said(finish="length"), MADE)
    found = {
        CHAT: lambda: whole["choices"][0]["finish_reason"],
        RESPONSES: lambda: (whole["status"], whole["incomplete_details"]),
        MESSAGES: lambda: whole["stop_reason"],
        GEMINI: lambda: whole["candidates"][0]["finishReason"].lower(),
    }[dialect]()
    assert found in ("length", ("incomplete", {"reason": "max_output_tokens"}), "max_tokens")


def test_a_context_that_is_too_long_is_said_in_words_that_agents_know() -> None:
    failure = Failure(status=400, kind="context_length", message="12 tokens, 8 are allowed")
    for dialect in (CHAT, RESPONSES):
        error = dialect.failure(failure)["error"]
        assert error["code"] == "context_length_exceeded" and "maximum context length" in error["message"]
    assert "prompt is too long: 12 tokens" in MESSAGES.failure(failure)["error"]["message"]
    assert "exceeds the maximum number of tokens allowed: 12 tokens" in GEMINI.failure(failure)["error"]["message"]


def test_numbers_that_json_lacks_and_half_characters_reach_no_client_or_tokenizer() -> None:
    odd = said("", calls=(CALLS[0].__class__("add", {"a": float("nan")}, "c"),), finish="tool_calls")
    block = MESSAGES.answer(MESSAGES.read(MESSAGES_BODY), odd, MADE)["content"][0]
    assert block["input"] == {"a": None}
    message = CHAT.read({**CHAT_BODY, "messages": [{"role": "user", "content": "a\ud800b"}]}).request.messages[0]
    assert message["content"] == "a\ufffdb"


def test_what_claude_code_sends_besides_is_accepted_and_its_billing_is_not_rendered() -> None:
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=2cf;"}
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    thought = {"type": "thinking", "thinking": "hm", "signature": "any"}
    body = {
        **MESSAGES_BODY,
        "system": [billing, cached],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "system", "content": [{"type": "text", "text": "# Environment"}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes?"}]},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"name": "add", "input_schema": PARAMETERS}, {"type": "web_search_20250305", "name": "web_search"}],
        "context_management": {"edits": edits}, "thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"},
        "output_config": {"effort": "high"}, "betas": ["b"], "service_tier": "auto",
    }  # fmt: skip
    request = MESSAGES.read(body).request
    roles = [(message["role"], message["content"]) for message in request.messages]
    assert roles == [("system", "Be brief."), ("user", "hi"), ("system", "# Environment"), ("assistant", "Yes?"),
                     ("user", "go on")]  # fmt: skip
    assert len(request.tools) == 1 and request.dropped == ("tool web_search_20250305",)
    assert request.accepted == ("betas", "metadata", "output_config.effort", "service_tier", "thinking")


def test_tools_of_a_namespace_are_offered_flat_and_called_in_it() -> None:
    inner = [{"type": "function", **FUNCTION}]
    past = {"type": "function_call", "call_id": "c1", "namespace": "sums", "name": "add", "arguments": '{"a": 1}'}
    body = {
        "model": "m", "client_metadata": {"x": "y"}, "store": False, "include": ["reasoning.encrypted_content"],
        "input": [{"role": "user", "content": "hi"}, past,
                  {"type": "function_call_output", "call_id": "c1", "output": "1"}],
        "tools": [{"type": "namespace", "name": "sums", "tools": inner}, {"type": "function", **FUNCTION, "name": "b"}],
    }  # fmt: skip
    asked = RESPONSES.read(body)
    assert [tool["function"]["name"] for tool in asked.request.tools] == ["sums.add", "b"]
    assert asked.request.messages[1]["tool_calls"][0]["function"]["name"] == "sums.add"
    answer = said("", calls=(ToolCall("sums.add", {"a": 1}, "c2"), ToolCall("b", {}, "c3")), finish="tool_calls")
    calls = RESPONSES.answer(asked, answer, MADE)["output"]
    assert [(call["name"], call.get("namespace")) for call in calls] == [("add", "sums"), ("b", None)]


def test_a_call_is_of_the_tool_that_has_the_whole_name_and_names_are_unique() -> None:
    inner = [{"type": "function", **FUNCTION}]
    namespaces = [{"type": "namespace", "name": name, "tools": inner} for name in ("sums", "sums.more")]
    body = {"model": "m", "input": "hi", "tools": [*namespaces, {"type": "function", **FUNCTION, "name": "sums.b"}]}
    answer = said("", calls=(ToolCall("sums.more.add", {}, "c1"), ToolCall("sums.b", {}, "c2")), finish="tool_calls")
    calls = RESPONSES.answer(RESPONSES.read(body), answer, MADE)["output"]
    assert [(call["name"], call.get("namespace")) for call in calls] == [("add", "sums.more"), ("sums.b", None)]
    body["tools"].append({"type": "function", **FUNCTION, "name": "sums.add"})
    with pytest.raises(CallRefused, match=r"tools\[3\].name: 'sums.add' is the name of two tools"):
        RESPONSES.read(body)


def test_the_page_has_the_table_of_fields_as_the_code_has_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "endpoint.md").read_text()
    assert page == written(page), "`python -m agentgym.serve.fields_table docs/endpoint.md` writes it again"


def test_a_handler_may_allow_to_drop_what_cannot_be_honoured() -> None:
    body = {**MESSAGES_BODY, "output_config": {"effort": "low", "format": {"type": "json_schema"}}, "mcp_servers": [{}]}
    with pytest.raises(CallRefused, match="mcp_servers"):
        read_request(MESSAGES, body, ["output_config.format"])
    asked = read_request(MESSAGES, body, ["output_config.format", "mcp_servers"])
    assert sorted(asked.request.dropped) == ["mcp_servers", "output_config.format"]
    with pytest.raises(CallRefused, match="messages"):  # dropped once, and it is still missing
        read_request(MESSAGES, {**MESSAGES_BODY, "messages": []}, ["messages"])
